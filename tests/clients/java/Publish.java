import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.Map;

/**
 * A producer as it runs beside a delayed-message exchange, without its declare: Publish PORT EXCHANGE KEY COUNT PREFIX.
 *
 * Publishes COUNT persistent, confirmed messages PREFIX0.. due half a second to two and a half seconds later, and each a
 * second time, without x-delay, to the exchange `control`.
 */
public class Publish {
    public static void main(String[] arguments) throws Exception {
        String exchange = arguments[1], key = arguments[2], prefix = arguments[4];
        int count = Integer.parseInt(arguments[3]);
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[0]));
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            for (int n = 0; n < count; n++) {
                Map<String, Object> headers = new HashMap<>();
                headers.put("sent", System.currentTimeMillis());
                headers.put("delay", 500 + n * 2);
                headers.put("text", "text " + n + " é");
                headers.put("flag", n % 2 == 0);
                headers.put("large", (1L << 40) + n);
                headers.put("double", n / 7.0);
                headers.put("price", new BigDecimal("3.14"));
                headers.put("at", new Date(1_700_000_000_000L));
                headers.put("bytes", new byte[] {0, (byte) 255});
                headers.put("list", Arrays.asList(1, "two", null));
                headers.put("table", Map.of("inner", Map.of("deep", (short) 7)));
                AMQP.BasicProperties.Builder properties = new AMQP.BasicProperties.Builder()
                    .messageId(prefix + n).correlationId("c" + n).contentType("application/json").contentEncoding("utf-8")
                    .priority(n % 10).timestamp(new Date(1_700_000_000_000L + n * 1000L)).type("order").appId("shop")
                    .replyTo("answers").deliveryMode(2);
                byte[] body = ("body " + n).getBytes(StandardCharsets.UTF_8);
                channel.basicPublish("control", key, true, properties.headers(new HashMap<>(headers)).build(), body);
                headers.put("x-delay", 500 + n * 2);
                channel.basicPublish(exchange, key, true, properties.headers(headers).build(), body);
            }
            channel.waitForConfirmsOrDie(60_000);
        }
    }
}
