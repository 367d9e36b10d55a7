import io.github.bucket4j.BucketConfiguration;
import io.github.bucket4j.redis.lettuce.Bucket4jLettuce;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.function.BooleanSupplier;
import org.redisson.Redisson;
import org.redisson.api.RateType;
import org.redisson.config.Config;
import redis.clients.jedis.JedisPooled;

/** Limiters in Redis as Java's clients ask for them: Asks PORT SCRIPT. Reads lines KIND COUNT, asks so often, and says what it was answered, a digit each. */
public final class Asks {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        String script = args[1];
        String gateway;
        try (InputStream in = Asks.class.getResourceAsStream("/META-INF/scripts/request_rate_limiter.lua")) {
            gateway = new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
        JedisPooled jedis = new JedisPooled("127.0.0.1", port);
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + port);
        var lettuce = client.connect().sync();
        String sha = lettuce.scriptLoad(gateway);
        var configuration = BucketConfiguration.builder().addLimit(limit -> limit.capacity(5).refillIntervally(5, Duration.ofHours(1))).build();
        var bucket = Bucket4jLettuce.casBasedBuilder(client).build().builder().build("bucket".getBytes(StandardCharsets.UTF_8), () -> configuration);
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        var redisson = Redisson.create(config).getRateLimiter("rate of the shop");
        String[] user = {"request_rate_limiter.{anna}.tokens", "request_rate_limiter.{anna}.timestamp"};
        Map<String, BooleanSupplier> kinds = Map.of(
                "jedis", () -> first(jedis.eval(script, List.of("rate:jedis"), List.of("7", "7", "60", "1"))),
                "lettuce", () -> first(lettuce.eval(script, ScriptOutputType.MULTI, new String[] {"rate:lettuce"}, "7", "7", "60", "1")),
                "gateway", () -> first(lettuce.evalsha(sha, ScriptOutputType.MULTI, user, "1", "5", "", "1")),
                "redisson", () -> {
                    redisson.trySetRate(RateType.OVERALL, 5, Duration.ofHours(1)); // as many programs do before each
                    redisson.availablePermits();
                    return redisson.tryAcquire();
                },
                "bucket4j", () -> bucket.tryConsume(1));
        System.out.println("ready");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNext()) {
            BooleanSupplier one = kinds.get(lines.next());
            StringBuilder answers = new StringBuilder();
            for (int count = lines.nextInt(); count > 0; count--) {
                answers.append(one.getAsBoolean() ? '1' : '0');
            }
            System.out.println(answers);
        }
        System.exit(0);
    }

    private static boolean first(Object reply) {
        return ((Long) ((List<?>) reply).get(0)) == 1;
    }
}
