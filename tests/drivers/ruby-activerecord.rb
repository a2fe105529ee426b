# ActiveRecord with its pool, on the pg gem.
require "active_record"
require "active_record/connection_adapters/postgresql_adapter"
require_relative "suite"

ERRORS = ActiveRecord::ActiveRecordError

class Job < ActiveRecord::Base; end
ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.alias_method(:exec, :execute)

# A fresh pool, as a process of its own would have it.
def connect(token = nil, **more)
  options = token ? { options: "-c fencing.token=#{token}" } : {}
  ActiveRecord::Base.establish_connection(
    adapter: "postgresql", host: "127.0.0.1", port: ENV["PGPORT"], database: "app", username: "app",
    password: "pencil", pool: 2, **options, **more
  )
  ActiveRecord::Base.connection
end

# The pool stays, and the first transactions with the new token fail at most once for each of its connections.
def after_takeover(times)
  connect
  job = lambda do |token, what|
    ActiveRecord::Base.connection_pool.with_connection do
      ActiveRecord::Base.transaction do
        ActiveRecord::Base.connection.execute("SET LOCAL fencing.token = #{token}")
        Job.create!(scenario: $now, what: what)
      end
    end
  ensure
    ActiveRecord::Base.clear_active_connections!
  end
  old = takeover
  times.times { job.call(old, "kept") }
  token = takeover
  refused { job.call(old, "lost") }
  tries = 0
  begin
    times.times { job.call(token, "kept") }
  rescue ERRORS
    retry if (tries += 1) < 3
    raise
  end
  tries.zero? ? "ok" : "after #{tries}"
end

SCENARIOS.merge!(
  "batch" => lambda {
    c = connect(takeover)
    Job.insert_all([{ scenario: "batch", what: "kept" }] * 2)
    takeover("asleep")
    refused { c.execute([write("lost"), slow, write("lost")].join("; ")) }
  },
  "pool" => -> { after_takeover(1) },
  "prepared" => -> { after_takeover(3) }
)
%w[copy autocommit cancel notify objects binary attrs cursor].each do |name|
  SCENARIOS[name] = -> { "n/a that of the driver beneath" }
end

main("ActiveRecord #{ActiveRecord.version} on pg")
