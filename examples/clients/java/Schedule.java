import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.zip.CRC32;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/**
 * Schedules the payload on standard input: over HTTP, or with lua/produce.lua in Redis.
 *
 * Every call has an id, so it can be repeated after a 503, a timeout or a lost connection: the message is scheduled
 * once. The delay counts from the attempt that is accepted.
 */
public class Schedule {
    static final String USAGE =
        "usage: Schedule [--script FILE] [--header 'NAME: VALUE']... [--replace] ROUTE ID DELAY_MS <PAYLOAD";
    static final String URL = variable("PUNCTUAL_URL", "http://127.0.0.1:8080");
    static final String TOKEN = System.getenv("PUNCTUAL_TOKEN");
    static final String REDIS_URL = variable("REDIS_URL", "redis://127.0.0.1:6379/0");
    /** `redis.key_prefix` of punctual. */
    static final String PREFIX = variable("PUNCTUAL_KEY_PREFIX", "punctual");
    /** Seconds; longer than a restart of punctual or a failover of Redis. */
    static final double GIVE_UP_AFTER = Double.parseDouble(variable("PUNCTUAL_GIVE_UP_AFTER", "60"));
    /** Timeout of one attempt; longer than `server.request_timeout`, so that the API answers first. */
    static final Duration TIMEOUT = Duration.ofSeconds(10);
    /** Milliseconds between attempts, doubled each time. `Retry-After` may ask for more. */
    static final long FIRST_PAUSE = 200, LONGEST_PAUSE = 5000;
    /** The API refuses for now, or a proxy in front of it got no answer. A 429 is repeated if it has `Retry-After`. */
    static final Set<Integer> REPEATED_STATUS = Set.of(408, 502, 503, 504);
    /** Temporary errors of Redis: it starts, is a replica or is full; or the route is full or has other partitions. */
    static final List<String> REPEATED_ERRORS = List.of("BUSY ", "LOADING ", "MASTERDOWN ", "MISCONF ", "OOM ",
        "READONLY ", "PUNCTUAL limit-messages", "PUNCTUAL limit-bytes", "PUNCTUAL wrong-partition");

    record Message(String route, String id, long delay, byte[] payload, Map<String, String> headers, String onConflict) {}

    /** Repeating the call does not help. */
    static class Failed extends Exception {
        Failed(String text) { super(text); }
    }

    /** Refused for now, or may have taken effect: repeat with the same id, after `retryAfter` milliseconds. */
    static class Unavailable extends Exception {
        final long retryAfter;
        Unavailable(String text, long retryAfter) { super(text); this.retryAfter = retryAfter; }
    }

    interface Attempt {
        String run() throws Failed, Unavailable, InterruptedException;
    }

    static final HttpClient client = HttpClient.newBuilder().connectTimeout(TIMEOUT).build();

    /** One attempt over HTTP. Returns the status of the message. */
    static String post(Message m) throws Failed, Unavailable, InterruptedException {
        String payload = Base64.getEncoder().encodeToString(m.payload);
        String body = new Gson().toJson(Map.of("id", m.id, "delay", m.delay, "payload_base64", payload,
            "headers", m.headers, "on_conflict", m.onConflict));
        String route = URLEncoder.encode(m.route, StandardCharsets.UTF_8);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(URL + "/v1/routes/" + route + "/messages"))
            .timeout(TIMEOUT).header("Content-Type", "application/json").POST(BodyPublishers.ofString(body));
        if (TOKEN != null) request.header("Authorization", "Bearer " + TOKEN);
        HttpResponse<String> reply;
        try {
            reply = client.send(request.build(), BodyHandlers.ofString());
        } catch (IOException error) {
            throw new Unavailable(error.toString(), 0);
        }
        int code = reply.statusCode();
        // 201: scheduled. 200: the id is known or was replaced; `status` says which.
        if (code == 200 || code == 201) return json(reply.body()).get("status").getAsString();
        if (code == 409) return "in_flight";
        String refused = code + ": " + reply.body(), retryAfter = reply.headers().firstValue("Retry-After").orElse("");
        if (REPEATED_STATUS.contains(code) || (code == 429 && !retryAfter.isEmpty())) {
            throw new Unavailable(refused, retryAfter.matches("\\d{1,9}") ? Long.parseLong(retryAfter) * 1000 : 0);
        }
        throw new Failed(refused);
    }

    /** One attempt in Redis. Returns the status of the message. */
    static String produce(Jedis server, String script, Message m) throws Failed {
        String registered = server.hget(PREFIX + ":routes", m.route);
        if (registered == null) throw new Failed("no route " + m.route + " is registered below " + PREFIX);
        CRC32 crc = new CRC32();
        crc.update(bytes(m.id));
        int n = json(registered).get("partitions").getAsInt();
        long index = crc.getValue() % n;
        List<byte[]> keys = List.of(bytes("{" + PREFIX + ":" + m.route + ":" + index + "/" + n + "}:pending"));
        String options = new Gson().toJson(Map.of("headers", m.headers, "on_conflict", m.onConflict));
        List<byte[]> arguments = List.of(bytes("1"), bytes(m.id), bytes("+" + m.delay), m.payload, bytes(options));
        Object reply;
        try {
            reply = server.evalsha(bytes(sha1(script)), keys, arguments);
        } catch (JedisNoScriptException unknown) {
            // After a restart or a failover; Redis keeps it from now on.
            reply = server.eval(bytes(script), keys, arguments);
        }
        return new String((byte[]) ((List<?>) reply).get(0), StandardCharsets.UTF_8);
    }

    /** An attempt with a connection of its own. A service would use a `JedisPooled`. */
    static String inRedis(String script, Message message) throws Failed, Unavailable {
        try (Jedis server = new Jedis(URI.create(REDIS_URL), (int) TIMEOUT.toMillis())) {
            return produce(server, script, message);
        } catch (JedisConnectionException error) {
            throw new Unavailable(error.toString(), 0);
        } catch (JedisDataException error) {
            String text = error.getMessage();
            if (REPEATED_ERRORS.stream().anyMatch(text::startsWith)) throw new Unavailable(text, 0);
            throw new Failed(text);
        }
    }

    /** Repeats an attempt while it may help, with growing, random pauses. */
    static String repeat(Attempt attempt) throws Failed, Unavailable, InterruptedException {
        long deadline = System.nanoTime() + (long) (GIVE_UP_AFTER * 1e9);
        for (long pause = FIRST_PAUSE;; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
            try {
                return attempt.run();
            } catch (Unavailable error) {
                long wait = Math.max(error.retryAfter, ThreadLocalRandom.current().nextLong(pause / 2, pause));
                if (System.nanoTime() + wait * 1_000_000 > deadline) throw error;
                System.err.printf("schedule: %s; next attempt in %.1f s%n", error.getMessage(), wait / 1000.0);
                Thread.sleep(wait);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path file = null;
        Map<String, String> headers = new HashMap<>();
        String onConflict = "keep";
        int at = 0;
        for (; at < arguments.length && arguments[at].startsWith("--"); at++) {
            boolean hasValue = at + 1 < arguments.length;
            if (arguments[at].equals("--replace")) {
                onConflict = "replace";
            } else if (arguments[at].equals("--script") && hasValue) {
                file = Path.of(arguments[++at]);
            } else if (arguments[at].equals("--header") && hasValue && arguments[++at].contains(":")) {
                String[] parts = arguments[at].split(":", 2);
                headers.put(parts[0], parts[1].strip());
            } else {
                usage();
            }
        }
        if (arguments.length - at != 3 || !arguments[at + 2].matches("\\d{1,18}")) usage();
        Message message = new Message(arguments[at], arguments[at + 1], Long.parseLong(arguments[at + 2]),
            System.in.readAllBytes(), headers, onConflict);
        try {
            String script = file == null ? null : Files.readString(file);
            String status = repeat(script == null ? () -> post(message) : () -> inRedis(script, message));
            if (status.equals("in_flight")) throw new Failed(message.id + " is being sent and was not replaced");
            System.out.println(status + " " + message.id);
        } catch (Failed | Unavailable | IOException | JedisException error) {
            System.err.println("schedule: " + error.getMessage());
            System.exit(1);
        }
    }

    static void usage() {
        System.err.println(USAGE);
        System.exit(2);
    }

    static String variable(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    static JsonObject json(String text) {
        return JsonParser.parseString(text).getAsJsonObject();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String sha1(String script) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-1").digest(bytes(script));
            return HexFormat.of().formatHex(digest);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
