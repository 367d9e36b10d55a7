import io.github.resilience4j.ratelimiter.RateLimiter;
import java.util.HashMap;
import java.util.Map;

/** Resilience4j 2, with Tickscope.java: <pre>TickscopeResilience4j.watch(rateLimiter);</pre> */
public final class TickscopeResilience4j {
    private TickscopeResilience4j() {}

    /** Has the limiter report its answers under its own name; returns it. */
    public static RateLimiter watch(RateLimiter limiter) {
        limiter.getEventPublisher()
                .onSuccess(event -> report(limiter, "allowed", event.getNumberOfPermits()))
                .onFailure(event -> report(limiter, "refused", event.getNumberOfPermits()));
        return limiter;
    }

    private static void report(RateLimiter limiter, String result, int permits) {
        Map<String, Object> more = new HashMap<>();
        try {
            long periodNs = limiter.getRateLimiterConfig().getLimitRefreshPeriod().toNanos();
            int limit = limiter.getRateLimiterConfig().getLimitForPeriod();
            more.put("cost", permits);
            more.put("burst", limit);
            more.put("window_ns", periodNs);
            more.put("limit_per_s", limit * 1e9 / periodNs);
            more.put("remaining", limiter.getMetrics().getAvailablePermissions()); // below 0: reserved by those who wait
            more.put("library", "resilience4j");
            more.put("library_version", RateLimiter.class.getPackage().getImplementationVersion());
        } catch (RuntimeException error) {
            // then less is known
        }
        Tickscope.report(limiter.getName(), result, -1, more);
    }
}
