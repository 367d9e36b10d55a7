import com.google.common.util.concurrent.RateLimiter;
import io.github.bucket4j.Bucket;
import io.github.resilience4j.ratelimiter.RateLimiterConfig;
import java.time.Duration;
import java.util.Map;
import java.util.Scanner;
import java.util.function.BooleanSupplier;

/** Real limiters behind the adapters for Java: Limiters SOCKET. Reads lines LIMITER COUNT, asks so often, and says how often it was allowed, and what is still to be told. */
public final class Limiters {
    public static void main(String[] args) throws InterruptedException {
        Tickscope.path = args[0];
        Bucket bucket = TickscopeBucket4j.watch(Bucket.builder().addLimit(limit -> limit.capacity(5).refillIntervally(5, Duration.ofHours(1))).build(), "bucket4j", "customer 17");
        var config = RateLimiterConfig.custom().limitForPeriod(5).limitRefreshPeriod(Duration.ofHours(1)).timeoutDuration(Duration.ZERO).build();
        var resilience = TickscopeResilience4j.watch(io.github.resilience4j.ratelimiter.RateLimiter.of("resilience4j", config));
        RateLimiter guava = RateLimiter.create(0.001);
        RateLimiter[] pace = new RateLimiter[1]; // made when it is asked, since it saves up what is not asked for
        Map<String, BooleanSupplier> limiters = Map.of(
                "bucket4j", () -> bucket.tryConsume(1),
                "resilience4j", resilience::acquirePermission,
                "guava", () -> TickscopeGuava.tryAcquire(guava, "guava", 1),
                "pace", () -> {
                    pace[0] = pace[0] == null ? RateLimiter.create(20) : pace[0];
                    return TickscopeGuava.acquire(pace[0], "pace", 1) == 0;
                },
                "odd", () -> Tickscope.decide("\u00fc \"\\\n", () -> true, Map.of("key", "x".repeat(100_000), "cost", 1.5)),
                "unknown", () -> Tickscope.decide("unknown", () -> true, Map.of("cost", Double.NaN)),
                "interrupted", () -> {
                    Thread.currentThread().interrupt();
                    return Tickscope.decide("interrupted", () -> true, Map.of()) & Thread.interrupted(); // and it still is
                });
        Scanner lines = new Scanner(System.in);
        while (lines.hasNext()) {
            String name = lines.next();
            int count = lines.nextInt();
            int allowed = 0;
            if (name.equals("crowd")) {
                Thread[] threads = new Thread[count];
                for (int i = 0; i < count; i++) {
                    threads[i] = new Thread(() -> Tickscope.decide("crowd", () -> true, Map.of()));
                    threads[i].start();
                }
                for (Thread thread : threads) {
                    thread.join();
                }
            } else {
                for (int i = 0; i < count; i++) {
                    allowed += limiters.get(name).getAsBoolean() ? 1 : 0;
                }
            }
            System.out.println(allowed + " " + Tickscope.dropped());
        }
    }
}
