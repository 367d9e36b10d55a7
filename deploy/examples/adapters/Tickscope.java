import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * Reports to tickscope what a rate limiter decides. Copy this file into your program, and TickscopeBucket4j, TickscopeResilience4j or TickscopeGuava beside it; any other
 * limiter: <pre>if (Tickscope.decide("api", limiter::tryAcquire, Map.of("key", customer))) ...</pre>
 * Java 16 or newer, nothing else. No caller waits for tickscope or gets an exception of it; where there is no agent, decisions are counted.
 */
public final class Tickscope {
    /** Java has no Unix sockets but streams: the agent takes a line a decision on this one. */
    public static volatile String path = "/run/tickscope/intake.stream.sock";

    private static final long PAUSE_NS = 100_000_000; // between two attempts to find an agent
    private static final ReentrantLock LOCK = new ReentrantLock();
    private static SocketChannel channel;
    private static long failedNs = System.nanoTime() - PAUSE_NS;
    private static long dropped;

    private Tickscope() {}

    /** Decisions that could not be sent so far; the next that can reports it, and it is 0 again. */
    public static long dropped() {
        LOCK.lock();
        try {
            return dropped;
        } finally {
            LOCK.unlock();
        }
    }

    /** Asks the limiter, reports its answer with the time that it took, and returns the answer. */
    public static boolean decide(String limiter, BooleanSupplier ask, Map<String, ?> more) {
        long began = System.nanoTime();
        boolean allowed = ask.getAsBoolean();
        report(limiter, allowed ? "allowed" : "refused", System.nanoTime() - began, more);
        return allowed;
    }

    /** result: allowed, refused, delayed, error or cancelled; durationNs: how long it took, below 0 unknown; more: members as in tickscope's docs/limiters-reference.md, their values
     * texts, numbers or booleans. Waits for nobody, throws nothing. */
    public static void report(String limiter, String result, long durationNs, Map<String, ?> more) {
        boolean interrupted = Thread.interrupted(); // else the channel would be closed
        LOCK.lock();
        try {
            dropped++; // unless it comes to its end
            StringBuilder line = new StringBuilder("{");
            more.forEach((name, value) -> member(line, name, value));
            if (durationNs >= 0) {
                member(line, "duration_ns", durationNs);
            }
            member(line, "dropped", dropped - 1);
            member(line, "limiter", limiter);
            member(line, "result", result);
            line.setCharAt(line.length() - 1, '}');
            if (send(line.append('\n').toString().getBytes(StandardCharsets.UTF_8))) {
                dropped = 0;
            }
        } catch (RuntimeException | IOException error) {
            // of no concern to who asked the limiter
        } finally {
            LOCK.unlock();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static boolean send(byte[] line) throws IOException {
        for (int tried = 0; tried < 2; tried++) { // an agent that was started again is found at once
            if (channel == null && !connect()) {
                return false;
            }
            try {
                int sent = channel.write(ByteBuffer.wrap(line));
                if (sent == line.length) {
                    return true;
                }
                if (sent == 0) { // the agent is behind
                    return false;
                }
            } catch (IOException error) {
                // it has ended
            }
            channel.close();
            channel = null;
        }
        return false;
    }

    private static boolean connect() throws IOException {
        if (System.nanoTime() - failedNs < PAUSE_NS) {
            return false;
        }
        failedNs = System.nanoTime();
        SocketChannel opened = SocketChannel.open(StandardProtocolFamily.UNIX);
        try {
            opened.configureBlocking(false);
            if (opened.connect(UnixDomainSocketAddress.of(path))) {
                channel = opened;
                failedNs -= PAUSE_NS;
                return true;
            }
        } finally {
            if (channel != opened) {
                opened.close();
            }
        }
        return false;
    }

    private static void member(StringBuilder line, String name, Object value) {
        if (value == null || value instanceof Number number && !Double.isFinite(number.doubleValue())) {
            return; // not known
        }
        text(line, name);
        line.append(':');
        if (value instanceof Number || value instanceof Boolean) {
            line.append(value);
        } else {
            text(line, value.toString());
        }
        line.append(',');
    }

    private static void text(StringBuilder line, String text) {
        line.append('"');
        for (int i = 0; i < Math.min(text.length(), 500); i++) {
            char c = text.charAt(i);
            if (c < ' ' || c == '"' || c == '\\' || c > '~') {
                line.append(String.format("\\u%04x", (int) c));
            } else {
                line.append(c);
            }
        }
        line.append('"');
    }
}
