"""psycopg 3 with its pool: the asynchronous suite without async and await."""

import os
import re

source = open(os.path.join(os.path.dirname(__file__), "python-psycopg-async.py")).read()
exec(compile(re.sub(r"\b(async|await) |\bAsync(?=Conn|Null)", "", source), "python-psycopg-async.py", "exec"))
