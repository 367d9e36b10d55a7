import com.google.common.util.concurrent.RateLimiter;
import java.util.Map;

/** Guava's RateLimiter, which lets nobody listen, with Tickscope.java: <pre>if (TickscopeGuava.tryAcquire(limiter, "api", 1)) ...</pre> */
public final class TickscopeGuava {
    private TickscopeGuava() {}

    public static boolean tryAcquire(RateLimiter limiter, String name, int permits) {
        return Tickscope.decide(name, () -> limiter.tryAcquire(permits), known(limiter, permits));
    }

    /** Waits as the limiter does; returns for how long, in seconds. */
    public static double acquire(RateLimiter limiter, String name, int permits) {
        long began = System.nanoTime();
        double waited = limiter.acquire(permits);
        Map<String, Object> more = known(limiter, permits);
        if (waited > 0) {
            more.put("wait_ns", (long) (waited * 1e9));
        }
        Tickscope.report(name, waited > 0 ? "delayed" : "allowed", System.nanoTime() - began, more);
        return waited;
    }

    private static Map<String, Object> known(RateLimiter limiter, int permits) {
        return new java.util.HashMap<>(Map.of("cost", permits, "limit_per_s", limiter.getRate(), "library", "com.google.common.util.concurrent.RateLimiter"));
    }
}
