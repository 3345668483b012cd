// Tests of reminders for orders, on a running `punctual dev`.

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.regex.Pattern;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class OrdersTest {
    static final HttpClient HTTP = HttpClient.newHttpClient();
    static final String URL = System.getenv().getOrDefault("PUNCTUAL_URL", "http://127.0.0.1:8080");

    static String call(String method, String path, String body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(URL + path)).method(method, BodyPublishers.ofString(body));
        var reply = HTTP.send(request.build(), BodyHandlers.ofString());
        assertTrue(reply.statusCode() < 300, method + " " + path + ": " + reply.statusCode());
        return reply.body();
    }

    static void remind(int order, String delay) throws Exception {
        var message = "{\"id\": \"remind-%d\", \"delay\": \"%s\", \"payload\": %d}".formatted(order, delay, order);
        call("POST", "/v1/routes/orders/messages", message);
    }

    static void advance(String by) throws Exception {
        var advanced = call("POST", "/v1/clock/advance", "{\"by\": \"%s\"}".formatted(by));
        assertTrue(advanced.contains("\"settled\":true,\"more\":false"), advanced);
    }

    static List<String> delivered() throws Exception {
        var ids = Pattern.compile("\"id\":\"([^\"]*)\"").matcher(call("GET", "/v1/inbox?route=orders", ""));
        return ids.results().map(found -> found.group(1)).toList();
    }

    @BeforeEach
    void clean() throws Exception {
        call("POST", "/v1/reset", "");
    }

    @Test
    void aReminderArrivesAfter30Minutes() throws Exception {
        remind(42, "30m");
        advance("29m");
        assertEquals(List.of(), delivered());
        advance("1m");
        assertEquals(List.of("remind-42"), delivered());
    }

    @Test
    void aPaidOrderGetsNoReminder() throws Exception {
        remind(43, "30m");
        call("DELETE", "/v1/routes/orders/messages/remind-43", "");
        advance("1d");
        assertEquals(List.of(), delivered());
    }
}
