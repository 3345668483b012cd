import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/**
 * Many messages that wait at once: Million URL EXCHANGE KEY QUEUE COUNT WAIT SPREAD.
 *
 * Publishes COUNT persistent, confirmed messages of 100 bytes to EXCHANGE. They are due evenly over SPREAD seconds, the first
 * WAIT seconds after the start. Consumes QUEUE, and prints how late they came: milliseconds, percentiles and the extremes;
 * and how many came early, twice or not at all.
 */
public class Million {
    static final int UNCONFIRMED = 10_000;

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        String exchange = arguments[1], key = arguments[2], queue = arguments[3];
        int count = Integer.parseInt(arguments[4]);
        long wait = Long.parseLong(arguments[5]) * 1000, spread = Long.parseLong(arguments[6]) * 1000;
        long[] late = new long[count];
        BitSet seen = new BitSet(count);
        int[] twice = new int[1];
        CountDownLatch all = new CountDownLatch(count);
        Channel consumer = factory.newConnection().createChannel();
        consumer.basicQos(2000);
        consumer.basicConsume(queue, false, new DefaultConsumer(consumer) {
            int unacknowledged;

            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                    throws java.io.IOException {
                long now = System.currentTimeMillis();
                int n = Integer.parseInt(properties.getMessageId());
                if (seen.get(n)) {
                    twice[0]++;
                } else {
                    seen.set(n);
                    late[n] = now - ((Number) properties.getHeaders().get("due")).longValue();
                    all.countDown();
                }
                if (++unacknowledged >= 500 || all.getCount() == 0) {
                    getChannel().basicAck(envelope.getDeliveryTag(), true);
                    unacknowledged = 0;
                }
            }
        });
        long start = System.currentTimeMillis();
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            byte[] body = new byte[100];
            for (int n = 0; n < count; n++) {
                long due = start + wait + spread * n / count;
                long delay = due - System.currentTimeMillis();
                AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().deliveryMode(2)
                    .messageId(Integer.toString(n)).headers(Map.of("x-delay", delay, "due", due)).build();
                channel.basicPublish(exchange, key, properties, body);
                if (n % UNCONFIRMED == UNCONFIRMED - 1) {
                    channel.waitForConfirmsOrDie(120_000);
                }
            }
            channel.waitForConfirmsOrDie(120_000);
        }
        long published = System.currentTimeMillis() - start;
        System.out.printf("published %d in %.1f s; the first is due after %d s%n", count, published / 1e3, wait / 1000);
        boolean complete = all.await(wait + spread + 600_000 - published, java.util.concurrent.TimeUnit.MILLISECONDS);
        System.out.printf("received %d, %d of them twice, after %.1f s%n",
            seen.cardinality(), twice[0], (System.currentTimeMillis() - start) / 1e3);
        long[] sorted = seen.stream().mapToLong(n -> late[n]).sorted().toArray();
        long early = Arrays.stream(sorted).filter(ms -> ms < 0).count();
        System.out.printf("early %d; late in ms: min %d p50 %d p90 %d p99 %d p99.9 %d max %d%n", early, sorted[0],
            at(sorted, 0.5), at(sorted, 0.9), at(sorted, 0.99), at(sorted, 0.999), sorted[sorted.length - 1]);
        System.exit(complete && early == 0 && twice[0] == 0 ? 0 : 1);
    }

    static long at(long[] sorted, double share) {
        return sorted[(int) (sorted.length * share)];
    }
}
