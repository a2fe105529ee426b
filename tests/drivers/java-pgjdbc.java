// pgjdbc with HikariCP.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.StringReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.util.PSQLException;

class Pgjdbc {
    interface Scenario { String run() throws Exception; }
    interface Action { void run() throws Exception; }

    static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();
    static String now = ""; // the scenario that runs

    static String env(String name) { return System.getenv(name); }

    /** Deposes everybody, and returns the token of the new leader. */
    static String takeover(String... when) throws Exception {
        String[] command = Arrays.copyOf(new String[] {env("TAKEOVER")}, 1 + when.length);
        System.arraycopy(when, 0, command, 1, when.length);
        Process run = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String token = new String(run.getInputStream().readAllBytes()).trim();
        check(run.waitFor() == 0);
        return token;
    }

    static String write(String what) { return "INSERT INTO jobs VALUES ('" + now + "', '" + what + "')"; }

    static String slow() { return "INSERT INTO jobs SELECT '" + now + "', 'lost' FROM pg_sleep(10)"; }

    static void check(boolean holds) {
        if (!holds) throw new AssertionError("not as expected");
    }

    static String url(String token, String more) {
        String options = token == null ? "" : "&options=-c%20fencing.token=" + token;
        return "jdbc:postgresql://127.0.0.1:" + env("PGPORT") + "/app?user=app&password=pencil" + options + more;
    }

    static Connection connect(String token) throws SQLException { return DriverManager.getConnection(url(token, "")); }

    static void run(Connection c, String sql) throws SQLException {
        try (Statement s = c.createStatement()) { s.execute(sql); }
    }

    /** How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost. */
    static String refused(Action action) throws Exception {
        SQLException error;
        try {
            action.run();
            throw new AssertionError("nothing was refused");
        } catch (SQLException e) {
            error = e;
        }
        for (String code : List.of("PF001", "PF002", "08007")) {
            if (code.equals(error.getSQLState())) return code;
            if (error.getMessage().contains(code + ": ")) return "(" + code + ")";
        }
        if (List.of("08003", "08006").contains(error.getSQLState())) return "lost";
        throw error;
    }

    static void scenario(String name, Scenario scenario) { SCENARIOS.put(name, scenario); }

    static void transaction(Connection c, String token, String what) throws SQLException {
        c.setAutoCommit(false);
        run(c, "SET LOCAL fencing.token = " + token);
        run(c, write(what));
        c.commit();
        c.setAutoCommit(true);
    }

    static void common() {
        // In transaction mode nothing that the driver sets for itself keeps the server connection.
        scenario("shares", () -> {
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                return takeover("keeps").equals("0") ? "ok" : "keeps";
            }
        });
        scenario("string", () -> {
            try (Connection c = connect(takeover())) { run(c, write("kept")); }
            return "ok";
        });
        scenario("set", () -> {
            try (Connection c = connect(null)) {
                run(c, "SET fencing.token = " + takeover());
                run(c, write("kept"));
            }
            return "ok";
        });
        scenario("local", () -> {
            try (Connection c = connect(null)) {
                transaction(c, takeover(), "kept");
                check(refused(() -> run(c, write("lost"))).equals("PF002"));
            }
            return "ok";
        });
        scenario("old-string", () -> {
            String old = takeover();
            try (Connection c = connect(takeover())) { run(c, write("kept")); }
            return refused(() -> connect(old));
        });
        scenario("old-set", () -> {
            String old = takeover(), token = takeover();
            try (Connection c = connect(null)) {
                String cell = refused(() -> run(c, "SET fencing.token = " + old));
                refused(() -> run(c, write("lost")));
                run(c, "SET fencing.token = " + token);
                run(c, write("kept"));
                return cell;
            }
        });
        scenario("old-local", () -> {
            String old = takeover(), token = takeover();
            try (Connection c = connect(null)) {
                String cell = refused(() -> transaction(c, old, "lost"));
                c.rollback();
                transaction(c, token, "kept");
                return cell;
            }
        });
        scenario("idle", () -> {
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                takeover();
                return refused(() -> run(c, write("lost")));
            }
        });
        scenario("transaction", () -> {
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                run(c, "BEGIN");
                run(c, write("lost"));
                takeover();
                return refused(() -> run(c, "COMMIT"));
            }
        });
        scenario("statement", () -> {
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                takeover("asleep");
                return refused(() -> run(c, slow()));
            }
        });
        scenario("fields", () -> {
            String old = takeover();
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                try {
                    run(c, "SET fencing.token = " + old);
                } catch (PSQLException e) {
                    check(e.getSQLState().equals("PF001"));
                    check(e.getServerErrorMessage().getDetail().startsWith("The mark of scope "));
                    check(e.getServerErrorMessage().getHint().startsWith("This process is no longer the leader. "));
                    return "ok";
                }
                throw new AssertionError("nothing was refused");
            }
        });
    }

    static void own() {
        scenario("batch", () -> {
            try (Connection c = connect(takeover())) {
                run(c, write("kept"));
                takeover("asleep");
                try (PreparedStatement s = c.prepareStatement("INSERT INTO jobs SELECT 'batch', ? FROM pg_sleep(?)")) {
                    for (int seconds : new int[] {0, 10, 0}) {
                        s.setString(1, "lost");
                        s.setInt(2, seconds);
                        s.addBatch();
                    }
                    return refused(s::executeBatch);
                }
            }
        });
        scenario("copy", () -> {
            try (Connection c = connect(takeover())) {
                var copies = c.unwrap(PGConnection.class).getCopyAPI();
                copies.copyIn("COPY jobs FROM STDIN", new StringReader("copy\tkept\n"));
                var copy = copies.copyIn("COPY jobs FROM STDIN");
                byte[] row = "copy\tlost\n".getBytes();
                return refused(() -> {
                    copy.writeToCopy(row, 0, row.length);
                    copy.flushCopy();
                    takeover();
                    copy.writeToCopy(row, 0, row.length);
                    copy.endCopy();
                });
            }
        });
        scenario("autocommit", () -> {
            try (Connection c = connect(null)) {
                c.setAutoCommit(false);
                run(c, "SET fencing.token = " + takeover());
                run(c, write("kept"));
                c.commit();
                run(c, write("lost"));
                takeover();
                return refused(c::commit);
            }
        });
        // In one pool, the first transactions with the new token fail at most once for each of its connections.
        scenario("pool", () -> {
            HikariConfig config = new HikariConfig();
            config.setJdbcUrl(url(null, ""));
            config.setMaximumPoolSize(2);
            try (HikariDataSource pool = new HikariDataSource(config)) {
                String old = takeover();
                try (Connection one = pool.getConnection(); Connection other = pool.getConnection()) {
                    transaction(one, old, "kept");
                    transaction(other, old, "kept");
                }
                String token = takeover();
                refused(() -> {
                    try (Connection c = pool.getConnection()) { transaction(c, old, "lost"); }
                });
                for (int tries = 0; ; tries++) {
                    try (Connection c = pool.getConnection()) {
                        transaction(c, token, "kept");
                        return tries == 0 ? "ok" : "after " + tries;
                    } catch (SQLException e) {
                        if (tries == 2) throw e;
                    }
                }
            }
        });
        scenario("prepared", () -> {
            String more = "&prepareThreshold=1";
            Connection c = DriverManager.getConnection(url(takeover(), more));
            PreparedStatement insert = c.prepareStatement("INSERT INTO jobs VALUES ('prepared', ?)");
            for (String what : List.of("kept", "kept", "kept")) {
                insert.setString(1, what);
                insert.execute();
            }
            String token = takeover();
            insert.setString(1, "lost");
            refused(insert::execute);
            if (c.isClosed()) {
                c = DriverManager.getConnection(url(token, more));
                insert = c.prepareStatement("INSERT INTO jobs VALUES ('prepared', ?)");
            } else {
                run(c, "SET fencing.token = " + token);
            }
            for (String what : List.of("kept", "kept", "kept")) {
                insert.setString(1, what);
                insert.execute();
            }
            c.close();
            return "ok";
        });
        scenario("cancel", () -> {
            try (Connection c = connect(takeover()); Statement s = c.createStatement()) {
                s.setQueryTimeout(1);
                try {
                    s.execute(slow());
                    throw new AssertionError("nothing was cancelled");
                } catch (SQLException e) {
                    check(e.getSQLState().equals("57014"));
                }
                run(c, write("kept"));
                return "ok";
            }
        });
        scenario("notify", () -> {
            try (Connection c = connect(takeover())) {
                run(c, "LISTEN jobs");
                run(c, "NOTIFY jobs, 'done'");
                check(c.unwrap(PGConnection.class).getNotifications(5000)[0].getParameter().equals("done"));
                run(c, write("kept"));
                return "ok";
            }
        });
        scenario("objects", () -> {
            try (Connection c = connect(takeover())) {
                c.setAutoCommit(false);
                var objects = c.unwrap(PGConnection.class).getLargeObjectAPI();
                long id = objects.createLO();
                var object = objects.open(id);
                object.write("an object".getBytes());
                object.seek(0);
                check(new String(object.read(100)).equals("an object"));
                object.close();
                objects.delete(id);
                run(c, write("kept"));
                c.commit();
                return "ok";
            }
        });
        scenario("cursor", () -> {
            try (Connection c = connect(takeover()); Statement s = c.createStatement()) {
                c.setAutoCommit(false);
                s.setFetchSize(10);
                ResultSet rows = s.executeQuery("SELECT generate_series(1, 1000)");
                for (int row = 1; row <= 1000; row++) {
                    check(rows.next() && rows.getInt(1) == row);
                    if (row == 15) run(c, write("kept"));
                }
                check(!rows.next());
                c.commit();
                return "ok";
            }
        });
        scenario("binary", () -> {
            String more = "&binaryTransfer=true&prepareThreshold=-1";
            try (Connection c = DriverManager.getConnection(url(takeover(), more));
                 PreparedStatement s = c.prepareStatement("SELECT ?::int, ?::float8, ?::bytea")) {
                s.setInt(1, 7);
                s.setDouble(2, 0.25);
                s.setBytes(3, new byte[] {0, -1});
                ResultSet row = s.executeQuery();
                check(row.next() && row.getInt(1) == 7 && row.getDouble(2) == 0.25);
                check(Arrays.equals(row.getBytes(3), new byte[] {0, -1}));
                run(c, write("kept"));
                return "ok";
            }
        });
        scenario("attrs", () -> {
            try (Connection c = DriverManager.getConnection(url(null, "&targetServerType=primary"))) {
                run(c, "SET fencing.token = " + takeover());
                run(c, write("kept"));
                return "ok";
            }
        });
    }

    public static void main(String[] only) throws Exception {
        common();
        own();
        try (Connection c = connect(null)) {
            System.out.println("version: pgjdbc " + c.getMetaData().getDriverVersion() + " with HikariCP");
        }
        for (var entry : SCENARIOS.entrySet()) {
            if (only.length > 0 && !List.of(only).contains(entry.getKey())) continue;
            now = entry.getKey();
            String cell;
            try {
                cell = entry.getValue().run();
            } catch (Throwable e) {
                int line = 0;
                for (var frame : e.getStackTrace()) {
                    boolean isOurs = frame.getClassName().startsWith("Pgjdbc") && !frame.getMethodName().equals("check");
                    if (line == 0 && isOurs) line = frame.getLineNumber();
                }
                cell = ("FAILED at " + line + ": " + e).replace('\n', ' ');
            }
            System.out.println(now + ": " + cell);
        }
    }
}
