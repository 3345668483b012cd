// Tests of reminders for orders, on a running `punctual dev`.
package orders

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"testing"
)

func call(t *testing.T, method, path string, body, reply any) {
	t.Helper()
	url := os.Getenv("PUNCTUAL_URL")
	if url == "" {
		url = "http://127.0.0.1:8080"
	}
	var data []byte
	if body != nil {
		data, _ = json.Marshal(body)
	}
	request, err := http.NewRequest(method, url+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, answer.Status)
	}
	if reply != nil {
		if err := json.NewDecoder(answer.Body).Decode(reply); err != nil {
			t.Fatal(err)
		}
	}
}

func remind(t *testing.T, order, delay string) {
	message := map[string]any{"id": "remind-" + order, "delay": delay, "payload": order}
	call(t, "POST", "/v1/routes/orders/messages", message, nil)
}

func advance(t *testing.T, by string) {
	t.Helper()
	var advanced struct{ Settled, More bool }
	call(t, "POST", "/v1/clock/advance", map[string]string{"by": by}, &advanced)
	if !advanced.Settled || advanced.More {
		t.Fatalf("%+v", advanced)
	}
}

func expect(t *testing.T, expected ...string) {
	t.Helper()
	var inbox struct{ Messages []struct{ ID string } }
	call(t, "GET", "/v1/inbox?route=orders", nil, &inbox)
	var ids []string
	for _, message := range inbox.Messages {
		ids = append(ids, message.ID)
	}
	if !reflect.DeepEqual(ids, expected) {
		t.Fatalf("delivered: %v, expected: %v", ids, expected)
	}
}

func TestAReminderArrivesAfter30Minutes(t *testing.T) {
	call(t, "POST", "/v1/reset", nil, nil)
	remind(t, "42", "30m")
	advance(t, "29m")
	expect(t)
	advance(t, "1m")
	expect(t, "remind-42")
}

func TestAPaidOrderGetsNoReminder(t *testing.T) {
	call(t, "POST", "/v1/reset", nil, nil)
	remind(t, "43", "30m")
	call(t, "DELETE", "/v1/routes/orders/messages/remind-43", nil, nil)
	advance(t, "24h")
	expect(t)
}
