// Writes an invoice every 200 ms: Quartz in a cluster, which gives a job to one scheduler at a time, with a pool
// (HikariCP).

import java.util.Map;
import java.util.Properties;
import org.quartz.*;
import org.quartz.impl.StdSchedulerFactory;
import org.quartz.utils.DBConnectionManager;

@DisallowConcurrentExecution
public class Invoices implements Job {
    public static void main(String[] arguments) {
        try {
            start(arguments[0]);
        } catch (SchedulerException error) {
            error.printStackTrace();
            System.exit(1); // the pool's threads would go on
        }
    }

    static void start(String url) throws SchedulerException {
        var settings = new Properties();
        settings.putAll(Map.of(
                "org.quartz.scheduler.instanceId", "AUTO",
                "org.quartz.threadPool.threadCount", "2",
                "org.quartz.jobStore.class", "org.quartz.impl.jdbcjobstore.JobStoreTX",
                "org.quartz.jobStore.driverDelegateClass", "org.quartz.impl.jdbcjobstore.PostgreSQLDelegate",
                "org.quartz.jobStore.dataSource", "db",
                "org.quartz.jobStore.isClustered", "true",
                "org.quartz.jobStore.clusterCheckinInterval", "500",
                "org.quartz.jobStore.dbRetryInterval", "500"));
        settings.putAll(Map.of(
                "org.quartz.dataSource.db.provider", "hikaricp",
                "org.quartz.dataSource.db.driver", "org.postgresql.Driver",
                "org.quartz.dataSource.db.URL", url,
                "org.quartz.dataSource.db.user", "postgres"));
        var scheduler = new StdSchedulerFactory(settings).getScheduler();
        var job = JobBuilder.newJob(Invoices.class).withIdentity("invoices").build();
        if (!scheduler.checkExists(job.getKey())) {
            var often = SimpleScheduleBuilder.simpleSchedule().withIntervalInMilliseconds(200).repeatForever();
            scheduler.scheduleJob(job, TriggerBuilder.newTrigger().withSchedule(often).build());
        }
        scheduler.start();
    }

    public void execute(JobExecutionContext context) throws JobExecutionException {
        try (var db = DBConnectionManager.getInstance().getConnection("db");
                var query = db.createStatement()) {
            var last = query.executeQuery("SELECT coalesce(max(number), 0) FROM invoices");
            last.next();
            query.executeUpdate("INSERT INTO invoices VALUES (" + (last.getInt(1) + 1) + ")");
        } catch (java.sql.SQLException error) {
            throw new JobExecutionException(error);
        }
    }
}
