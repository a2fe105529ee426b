"""Django, on psycopg with its pool."""

import contextlib
import os

import django
from django.conf import settings
from django.db import connections, models, transaction

import suite
from suite import equal, scenario, takeover, without

DATABASE = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "NAME": "app", "USER": "app"}
settings.configure(DATABASES={"default": {**DATABASE, "PORT": os.environ["PGPORT"], "PASSWORD": "pencil"}})
django.setup()


class Job(models.Model):
    scenario = models.TextField(primary_key=True)
    what = models.TextField()

    class Meta:
        app_label = "jobs"
        db_table = "jobs"


class Django(suite.Driver):
    errors = django.db.Error

    def connect(self, token=None, **more):
        """A fresh connection, as a process of its own would have it."""
        with contextlib.suppress(AttributeError):
            del connections["default"]
        options = {"options": f"-c fencing.token={token}"} if token else {}
        connections.settings["default"]["OPTIONS"] = {**options, **more}
        connections["default"].ensure_connection()
        return connections["default"]

    def execute(self, c, sql):
        with c.cursor() as cursor:
            cursor.execute(sql)

    def state(self, error):
        return getattr(error.__cause__, "sqlstate", None)

    def fields(self, error):
        diag = error.__cause__.diag
        return error.__cause__.sqlstate, diag.message_detail, diag.message_hint


driver = Django()
suite.common(driver)
connect, execute, refused = driver.connect, driver.execute, driver.refused


@scenario
def batch():
    c = connect(takeover())
    Job.objects.bulk_create([Job("batch", "kept"), Job("batch", "kept")])
    takeover("asleep")
    with c.cursor() as cursor:
        insert = "INSERT INTO jobs SELECT 'batch', %s FROM pg_sleep(%s)"
        return refused(cursor.executemany, insert, [("lost", 0), ("lost", 10), ("lost", 0)])


@scenario
def autocommit():
    """ATOMIC_REQUESTS is the like."""
    connect(takeover())
    with transaction.atomic():
        Job.objects.create(scenario="autocommit", what="kept")

    def request():
        with transaction.atomic():
            Job.objects.create(scenario="autocommit", what="lost")
            takeover()

    return refused(request)


@scenario
def pool():
    c = connect(pool={"min_size": 2, "max_size": 2})

    def job(token, what):
        try:
            with transaction.atomic():
                execute(c, f"SET LOCAL fencing.token = {token}")
                Job.objects.create(scenario="pool", what=what)
        finally:
            c.close()

    return driver.after_takeover(job)


@scenario
def cursor():
    connect(takeover())
    with transaction.atomic():
        for _ in range(30):
            Job.objects.create(scenario="cursor", what="kept")
        rows = Job.objects.filter(scenario="cursor").iterator(chunk_size=10)
        equal([next(rows).what for _ in range(30)], ["kept"] * 30)


without("that of the driver beneath", "copy", "prepared", "cancel", "notify", "objects", "binary", "attrs")
suite.main(f"Django {django.__version__} on psycopg")
