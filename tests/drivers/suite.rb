# What the suites in Ruby share: the scenarios that are SQL only, and how a suite reports.
#
# A suite defines `connect(token)`, with a connection that has `exec` and `transaction`, and `ERRORS`.
require "pg"

$stdout.sync = true
$now = "" # the scenario that runs

# Deposes everybody, and returns the token of the new leader.
def takeover(*moment)
  token = IO.popen([ENV["TAKEOVER"], *moment], &:read).strip
  raise "no takeover" unless $?.success?
  token
end

def write(what) = "INSERT INTO jobs VALUES ('#{$now}', '#{what}')"
def slow = "INSERT INTO jobs SELECT '#{$now}', 'lost' FROM pg_sleep(10)"

def check(holds)
  raise "not as expected" unless holds
end

# A field of the server's message.
def field(error, name)
  error = error.cause unless error.is_a?(PG::Error)
  error.result&.error_field(name) if error.is_a?(PG::Error)
end

# How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
def refused
  yield
rescue ERRORS => e
  %w[PF001 PF002 08007].each do |code|
    return code if field(e, PG::PG_DIAG_SQLSTATE) == code
    return "(#{code})" if e.message.include?("#{code}: ")
  end
  return "lost" if e.message =~ /clos|lost|terminat|socket/
  raise
else
  raise "nothing was refused"
end

def transaction(c, token, what)
  c.transaction do
    c.exec("SET LOCAL fencing.token = #{token}")
    c.exec(write(what))
  end
end

SCENARIOS = {
  # In transaction mode nothing that the driver sets for itself keeps the server connection.
  "shares" => lambda {
    c = connect(takeover)
    c.exec(write("kept"))
    takeover("keeps") == "0" ? "ok" : "keeps"
  },
  "string" => -> { connect(takeover).exec(write("kept")); "ok" },
  "set" => lambda {
    c = connect
    c.exec("SET fencing.token = #{takeover}")
    c.exec(write("kept"))
    "ok"
  },
  "local" => lambda {
    c = connect
    transaction(c, takeover, "kept")
    check(refused { c.exec(write("lost")) } == "PF002")
    "ok"
  },
  "old-string" => lambda {
    old = takeover
    connect(takeover).exec(write("kept"))
    refused { connect(old) }
  },
  "old-set" => lambda {
    old, token, c = takeover, takeover, connect
    cell = refused { c.exec("SET fencing.token = #{old}") }
    refused { c.exec(write("lost")) }
    c.exec("SET fencing.token = #{token}")
    c.exec(write("kept"))
    cell
  },
  "old-local" => lambda {
    old, token, c = takeover, takeover, connect
    cell = refused { transaction(c, old, "lost") }
    transaction(c, token, "kept")
    cell
  },
  "idle" => lambda {
    c = connect(takeover)
    c.exec(write("kept"))
    takeover
    refused { c.exec(write("lost")) }
  },
  "transaction" => lambda {
    c = connect(takeover)
    c.exec(write("kept"))
    refused { c.transaction { c.exec(write("lost")); takeover } }
  },
  "statement" => lambda {
    c = connect(takeover)
    c.exec(write("kept"))
    takeover("asleep")
    refused { c.exec(slow) }
  },
  "fields" => lambda {
    old, c = takeover, connect(takeover)
    c.exec(write("kept"))
    begin
      c.exec("SET fencing.token = #{old}")
      raise "nothing was refused"
    rescue ERRORS => e
      check(field(e, PG::PG_DIAG_SQLSTATE) == "PF001")
      check(field(e, PG::PG_DIAG_MESSAGE_DETAIL).start_with?("The mark of scope "))
      check(field(e, PG::PG_DIAG_MESSAGE_HINT).start_with?("This process is no longer the leader. "))
    end
    "ok"
  }
}

def main(version)
  puts "version: #{version}"
  SCENARIOS.each do |name, scenario|
    next unless ARGV.empty? || ARGV.include?(name)

    $now = name
    cell = begin
      scenario.call
    rescue StandardError => e
      "FAILED at #{e.backtrace.grep(/ruby-|suite/).first[/\d+/]}: #{e.class} #{e.message}".tr("\n", " ")
    end
    puts "#{name}: #{cell}"
  end
end
