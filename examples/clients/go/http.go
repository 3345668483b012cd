package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

var client = http.Client{Timeout: timeout}

// post is one attempt over HTTP. It returns the status of the message.
func post(m message) (string, error) {
	// A []byte becomes base64.
	body, err := json.Marshal(map[string]any{
		"id": m.id, "delay": m.delay, "payload_base64": m.payload, "headers": m.headers, "on_conflict": m.onConflict,
	})
	if err != nil {
		return "", err
	}
	address := variable("PUNCTUAL_URL", "http://127.0.0.1:8080") + "/v1/routes/" + url.PathEscape(m.route) + "/messages"
	request, err := http.NewRequest(http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if token := os.Getenv("PUNCTUAL_TOKEN"); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := client.Do(request)
	if err != nil {
		return "", unavailable{error: err}
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return "", unavailable{error: err}
	}
	refused := fmt.Errorf("%d: %s", reply.StatusCode, text)
	retryAfter, err := strconv.Atoi(reply.Header.Get("Retry-After"))
	switch code := reply.StatusCode; {
	case code == http.StatusOK || code == http.StatusCreated:
		// 201: scheduled. 200: the id is known or was replaced; `status` says which.
		var scheduled struct{ Status string }
		err := json.Unmarshal(text, &scheduled)
		return scheduled.Status, err
	case code == http.StatusConflict:
		return "in_flight", nil
	case code == http.StatusTooManyRequests && err == nil,
		code == http.StatusRequestTimeout, code == http.StatusBadGateway,
		code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		// Refused for now, or a proxy got no answer. A 429 is repeated only if it has `Retry-After`.
		return "", unavailable{refused, time.Duration(retryAfter) * time.Second}
	default:
		return "", refused
	}
}
