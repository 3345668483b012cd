package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Temporary errors of Redis: it starts, is a replica or is full; or the route is full or has other partitions.
var repeatedErrors = []string{
	"BUSY ", "LOADING ", "MASTERDOWN ", "MISCONF ", "OOM ", "READONLY ",
	"PUNCTUAL limit-messages", "PUNCTUAL limit-bytes", "PUNCTUAL wrong-partition",
}

// produce is one attempt in Redis. It returns the status of the message.
func produce(ctx context.Context, server *redis.Client, script *redis.Script, m message) (string, error) {
	// `redis.key_prefix` of punctual.
	prefix := variable("PUNCTUAL_KEY_PREFIX", "punctual")
	registered, err := server.HGet(ctx, prefix+":routes", m.route).Bytes()
	if errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("no route %s is registered below %s", m.route, prefix)
	} else if err != nil {
		return "", inRedis(err)
	}
	var route struct{ Partitions uint32 }
	if err := json.Unmarshal(registered, &route); err != nil {
		return "", err
	}
	n := route.Partitions
	index := crc32.ChecksumIEEE([]byte(m.id)) % n
	key := fmt.Sprintf("{%s:%s:%d/%d}:pending", prefix, m.route, index, n)
	options, err := json.Marshal(map[string]any{"headers": m.headers, "on_conflict": m.onConflict})
	if err != nil {
		return "", err
	}
	// EVALSHA, and EVAL when Redis does not know the script: after a restart or a failover.
	reply, err := script.Run(ctx, server, []string{key}, 1, m.id, fmt.Sprintf("+%d", m.delay), m.payload, options).Slice()
	if err != nil {
		return "", inRedis(err)
	}
	return fmt.Sprint(reply[0]), nil
}

// inRedis returns the error of a call, as unavailable if it is worth repeating.
func inRedis(err error) error {
	var answered redis.Error
	if !errors.As(err, &answered) {
		// No answer: not connected, disconnected, too late.
		return unavailable{error: err}
	}
	for _, start := range repeatedErrors {
		if strings.HasPrefix(err.Error(), start) {
			return unavailable{error: err}
		}
	}
	return err
}
