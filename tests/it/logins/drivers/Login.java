// Logs in with settings from the environment, and prints whether the connection to PostgreSQL is encrypted.
import java.sql.DriverManager;
import java.util.Properties;

public class Login {
    public static void main(String[] arguments) {
        var environment = System.getenv();
        var properties = new Properties();
        properties.setProperty("user", "app");
        properties.setProperty("password", environment.get("PGPASSWORD"));
        properties.setProperty("sslmode", environment.get("PGSSLMODE"));
        properties.setProperty("sslrootcert", environment.get("PGSSLROOTCERT"));
        var url = "jdbc:postgresql://" + environment.get("PGHOST") + ":" + environment.get("PGPORT") + "/postgres";
        try (var connection = DriverManager.getConnection(url, properties);
                var result = connection.createStatement().executeQuery(arguments[1])) {
            result.next();
            System.out.println(result.getBoolean(1));
        } catch (Exception error) {
            System.err.println(error.getMessage());
            System.exit(1);
        }
    }
}
