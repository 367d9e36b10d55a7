import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.BucketListener;
import io.github.bucket4j.local.LocalBucket;
import java.util.HashMap;
import java.util.Map;

/** Bucket4j 8, with Tickscope.java: <pre>Bucket bucket = TickscopeBucket4j.watch(Bucket.builder()...build(), "api", null);</pre> */
public final class TickscopeBucket4j {
    private TickscopeBucket4j() {}

    /** The bucket, which reports what it answers. key: whose it is, or null. What is left is asked only of a bucket in this process: a remote one answers by a round trip. */
    public static Bucket watch(Bucket bucket, String name, String key) {
        Map<String, Object> known = new HashMap<>();
        known.put("key", key);
        known.put("library", "io.github.bucket4j");
        known.put("library_version", Bucket.class.getPackage().getImplementationVersion());
        if (bucket instanceof LocalBucket local) {
            Bandwidth tightest = local.getConfiguration().getBandwidths()[0];
            known.put("burst", tightest.getCapacity());
            known.put("limit_per_s", tightest.getRefillTokens() * 1e9 / tightest.getRefillPeriodNanos());
            known.put("window_ns", tightest.getRefillPeriodNanos());
        }
        return bucket.toListenable(new BucketListener() {
            private void report(String result, long tokens) {
                Map<String, Object> more = new HashMap<>(known);
                more.put("cost", tokens);
                try {
                    more.put("remaining", bucket instanceof LocalBucket ? bucket.getAvailableTokens() : null);
                } catch (RuntimeException error) {
                    // then what is left is not known
                }
                Tickscope.report(name, result, -1, more);
            }

            @Override
            public void onConsumed(long tokens) {
                report("allowed", tokens);
            }

            @Override
            public void onRejected(long tokens) {
                report("refused", tokens);
            }

            @Override
            public void onParked(long nanos) {
                // onConsumed has reported it
            }

            @Override
            public void onInterrupted(InterruptedException error) {
                // onConsumed has reported it
            }

            @Override
            public void onDelayed(long nanos) {
                // onConsumed has reported it
            }
        });
    }
}
