// The commands of hdt3213/delayqueue's publisher, in its order, each on its own: SET, HSET, ZADD to publish, ZCARD to
// count, LREM, ZREM, DEL, HDEL to intercept.
//
//	delayqueue PORT NAME PREFIX HASHTAG MESSAGES INTERCEPTED
//
// Publishes so many messages, due from two seconds on, then those that it intercepts, due eight seconds ahead, counts,
// and intercepts. The library itself resolves behind few module proxies; this speaks to Redis with the standard library.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

type queue struct {
	connection net.Conn
	replies    *bufio.Reader
	base, body string
}

// do sends one command and returns its reply: an integer, or a status.
func (q *queue) do(words ...string) string {
	fmt.Fprintf(q.connection, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(q.connection, "$%d\r\n%s\r\n", len(word), word)
	}
	line, err := q.replies.ReadString('\n')
	check(err)
	if line[0] == '-' {
		check(fmt.Errorf("%s: %s", words[0], line))
	}
	return strings.TrimSpace(line[1:])
}

const retries = 3

// publish is SendScheduleMsg.
func (q *queue) publish(id, payload string, at time.Time) {
	ttl := time.Until(at) + time.Hour
	q.do("SET", q.body+id, payload, "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
	q.do("HSET", q.base+":retry:cnt", id, strconv.Itoa(retries))
	q.do("ZADD", q.base+":pending", strconv.FormatInt(at.Unix(), 10), id)
}

// intercept is TryIntercept; it says where the message was.
func (q *queue) intercept(id string) bool {
	found := q.do("LREM", q.base+":ready", "0", id) != "0"
	found = q.do("ZREM", q.base+":pending", id) != "0" || found
	q.do("DEL", q.body+id)
	q.do("HDEL", q.base+":retry:cnt", id)
	return found
}

func main() {
	port, name, prefix, hashTag := os.Args[1], os.Args[2], os.Args[3], os.Args[4] == "true"
	messages, err := strconv.Atoi(os.Args[5])
	check(err)
	intercepted, err := strconv.Atoi(os.Args[6])
	check(err)
	connection, err := net.Dial("tcp", "127.0.0.1:"+port)
	check(err)
	q := &queue{connection, bufio.NewReader(connection), prefix + ":" + name, "dp:" + name + ":msg:"}
	if hashTag {
		q.base, q.body = "{"+prefix+":"+name+"}", "{dp:"+name+"}:msg:"
	}
	start := time.Now().Add(2 * time.Second)
	for n := 0; n < messages; n++ {
		q.publish(uuid(), fmt.Sprintf("message %d", n), start.Add(time.Duration(n)*time.Millisecond))
	}
	unwanted := make([]string, intercepted)
	for n := range unwanted {
		unwanted[n] = uuid()
		q.publish(unwanted[n], "intercepted", time.Now().Add(8*time.Second))
	}
	count, err := strconv.Atoi(q.do("ZCARD", q.base+":pending"))
	check(err)
	if count < intercepted {
		check(fmt.Errorf("%d pending, at least %d were expected", count, intercepted))
	}
	for _, id := range unwanted {
		if !q.intercept(id) {
			check(fmt.Errorf("%s could not be intercepted", id))
		}
	}
}

// uuid is a random one, version 4.
func uuid() string {
	random, err := os.Open("/dev/urandom")
	check(err)
	defer random.Close()
	b := make([]byte, 16)
	_, err = io.ReadFull(random, b)
	check(err)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
