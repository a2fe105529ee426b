# The pg gem.
require_relative "suite"

ERRORS = PG::Error

def connect(token = nil, **more)
  PG.connect(options: token ? "-c fencing.token=#{token}" : "", **more)
end

SCENARIOS.merge!(
  "batch" => lambda {
    c = connect(takeover)
    c.exec(write("kept"))
    takeover("asleep")
    c.enter_pipeline_mode
    [write("lost"), slow, write("lost")].each { |sql| c.send_query_params(sql, []) }
    c.pipeline_sync
    refused { 6.times { c.get_result&.check } }
  },
  "copy" => lambda {
    c = connect(takeover)
    c.copy_data("COPY jobs FROM STDIN") { c.put_copy_data("copy\tkept\n") }
    refused do
      c.copy_data("COPY jobs FROM STDIN") do
        c.put_copy_data("copy\tlost\n")
        takeover
        c.put_copy_data("copy\tlost\n")
      end
    end
  },
  "autocommit" => -> { "n/a the pg gem has none" },
  "pool" => -> { "n/a the pg gem has none" },
  "prepared" => lambda {
    c = connect(takeover)
    c.prepare("insert", "INSERT INTO jobs VALUES ('prepared', $1)")
    3.times { c.exec_prepared("insert", ["kept"]) }
    token = takeover
    refused { c.exec_prepared("insert", ["lost"]) }
    if c.status == PG::CONNECTION_BAD
      c = connect(token)
      c.prepare("insert", "INSERT INTO jobs VALUES ('prepared', $1)")
    else
      c.exec("SET fencing.token = #{token}")
    end
    3.times { c.exec_prepared("insert", ["kept"]) }
    "ok"
  },
  "cancel" => lambda {
    c = connect(takeover)
    Thread.new { sleep 1; c.cancel }
    begin
      c.exec(slow)
      raise "nothing was cancelled"
    rescue PG::QueryCanceled
      c.exec(write("kept"))
    end
    "ok"
  },
  "notify" => lambda {
    c = connect(takeover)
    c.exec("LISTEN jobs")
    c.exec("NOTIFY jobs, 'done'")
    heard = nil
    c.wait_for_notify(5) { |_channel, _pid, payload| heard = payload }
    check(heard == "done")
    c.exec(write("kept"))
    "ok"
  },
  "objects" => lambda {
    c = connect(takeover)
    c.transaction do
      id = c.lo_creat
      object = c.lo_open(id, PG::INV_READ | PG::INV_WRITE)
      c.lo_write(object, "an object")
      c.lo_lseek(object, 0, PG::SEEK_SET)
      check(c.lo_read(object, 100) == "an object")
      c.lo_unlink(id)
      c.exec(write("kept"))
    end
    "ok"
  },
  "cursor" => lambda {
    c = connect(takeover)
    c.transaction do
      c.exec("DECLARE rows CURSOR FOR SELECT generate_series(1, 1000)")
      check(c.exec("FETCH 10 FROM rows").values.last == ["10"])
      c.exec(write("kept"))
      check(c.exec("FETCH 990 FROM rows").values.last == ["1000"])
    end
    "ok"
  },
  "binary" => lambda {
    c = connect(takeover)
    bytes = { value: "\0\xff".b, format: 1 }
    row = c.exec_params("SELECT $1::int, $2::bytea", [{ value: [7].pack("N"), format: 1 }, bytes], 1).values.first
    check(row == [[7].pack("N"), "\0\xff".b])
    c.exec(write("kept"))
    "ok"
  },
  "attrs" => lambda {
    c = connect(target_session_attrs: "read-write")
    c.exec("SET fencing.token = #{takeover}")
    c.exec(write("kept"))
    "ok"
  }
)

main("Ruby's pg #{PG::VERSION}")
