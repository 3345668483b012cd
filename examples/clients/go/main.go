// Schedule takes the payload on standard input and schedules it: over HTTP, or with lua/produce.lua in Redis.
//
// Every call has an id, so it can be repeated after a 503, a timeout or a lost connection: the message is scheduled
// once. The delay counts from the attempt that is accepted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Timeout of one attempt; longer than `server.request_timeout`, so that the API answers first.
	timeout = 10 * time.Second
	// Pauses between attempts, doubled each time. `Retry-After` may ask for more.
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
)

type message struct {
	route, id  string
	delay      int64 // milliseconds
	payload    []byte
	headers    headers
	onConflict string
}

// unavailable is an attempt that was refused for now or may have taken effect: repeat it with the same id, after
// retryAfter.
type unavailable struct {
	error
	retryAfter time.Duration
}

// repeat repeats an attempt while it may help, with growing, random pauses. Returns the status of the message.
func repeat(attempt func() (string, error)) (string, error) {
	giveUpAfter, err := strconv.ParseFloat(variable("PUNCTUAL_GIVE_UP_AFTER", "60"), 64)
	if err != nil {
		return "", err
	}
	deadline := time.Now().Add(time.Duration(giveUpAfter * float64(time.Second)))
	pause := firstPause
	for {
		status, err := attempt()
		var later unavailable
		if !errors.As(err, &later) {
			return status, err
		}
		wait := pause/2 + time.Duration(rand.Int63n(int64(pause/2)))
		if wait < later.retryAfter {
			wait = later.retryAfter
		}
		if time.Now().Add(wait).After(deadline) {
			return "", err
		}
		fmt.Fprintf(os.Stderr, "schedule: %v; next attempt in %.1f s\n", err, wait.Seconds())
		time.Sleep(wait)
		if pause *= 2; pause > longestPause {
			pause = longestPause
		}
	}
}

func variable(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// headers are options of the command line, 'NAME: VALUE'.
type headers map[string]string

func (h headers) String() string { return "" }

func (h headers) Set(text string) error {
	parts := strings.SplitN(text, ":", 2)
	if len(parts) != 2 {
		return errors.New("use 'NAME: VALUE'")
	}
	h[parts[0]] = strings.TrimSpace(parts[1])
	return nil
}

func run() error {
	m := message{headers: headers{}, onConflict: "keep"}
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: schedule [OPTIONS] ROUTE ID DELAY_MS <PAYLOAD")
		flag.PrintDefaults()
	}
	file := flag.String("script", "", "`FILE` of lua/produce.lua: in Redis, not over HTTP")
	flag.Var(m.headers, "header", "'NAME: VALUE', repeatable")
	replace := flag.Bool("replace", false, "replace a waiting message of this id")
	flag.Parse()
	var err error
	if m.delay, err = strconv.ParseInt(flag.Arg(2), 10, 64); err != nil || flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	m.route, m.id = flag.Arg(0), flag.Arg(1)
	if *replace {
		m.onConflict = "replace"
	}
	if m.payload, err = io.ReadAll(os.Stdin); err != nil {
		return err
	}
	attempt := func() (string, error) { return post(m) }
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		options, err := redis.ParseURL(variable("REDIS_URL", "redis://127.0.0.1:6379/0"))
		if err != nil {
			return err
		}
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = timeout, timeout, timeout
		options.MaxRetries = -1 // repeat does it
		server, script := redis.NewClient(options), redis.NewScript(string(text))
		defer server.Close()
		attempt = func() (string, error) {
			return produce(context.Background(), server, script, m)
		}
	}
	status, err := repeat(attempt)
	if err == nil && status == "in_flight" {
		err = fmt.Errorf("%s is being sent and was not replaced", m.id)
	}
	if err != nil {
		return err
	}
	fmt.Println(status, m.id)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	}
}
