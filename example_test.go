package limits_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// exampleClient connects to the limiter that TestMain runs for the examples.
func exampleClient() (c *limits.Client, done func()) {
	nc, err := nats.Connect(natsURL, limits.Reconnect())
	if err != nil {
		log.Fatal(err)
	}
	return limits.NewClient(nc, limits.Timeout(time.Minute)), nc.Close
}

func Example() {
	nc, err := nats.Connect(natsURL, limits.Reconnect()) // 127.0.0.1:4222, where `limiter` listens
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	client := limits.NewClient(nc)

	for range 3 {
		reply, err := client.Consume(context.Background(), limits.Per("api:user:123", 2, "1h"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Allowed, reply.Remaining, reply.RetryIn() > 0)
	}
	// Output:
	// true 1 false
	// true 0 false
	// false 0 true
}

// An HTTP handler answers 429 once its user is over the limit, and lets requests pass if there is no limiter. It uses a
// deadline of its own: the request's context ends when its client goes away, and that must not be a way around the limit.
func Example_httpHandler() {
	client, done := exampleClient()
	defer done()
	handler := func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 3*time.Second)
		defer cancel()
		reply, err := client.Consume(ctx, limits.Per("http:user:"+r.Header.Get("X-User"), 1, "1h"))
		if err == nil && !reply.Allowed {
			w.Header().Set("Retry-After", strconv.Itoa(int((reply.RetryAfter+999)/1000)))
			http.Error(w, reply.Message, http.StatusTooManyRequests)
			return
		}
		fmt.Fprintln(w, "hello")
	}

	for range 2 {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "7")
		handler(w, r)
		fmt.Println(w.Code, w.Header().Get("Retry-After") != "")
	}
	// Output:
	// 200 false
	// 429 true
}

// Each user is sent one notification per hour; further ones go into a digest.
func Example_notification() {
	client, done := exampleClient()
	defer done()
	notify := func(user, text string) {
		reply, err := client.Consume(context.Background(), limits.Per("notify:user:"+user, 1, "1h"))
		if err != nil || reply.Allowed {
			fmt.Println("send", text)
		} else {
			fmt.Println("digest", text)
		}
	}

	notify("7", "first")
	notify("7", "second")
	// Output:
	// send first
	// digest second
}

// Outbound calls wait until the limit has room for them.
func ExampleClient_Wait() {
	client, done := exampleClient()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	began := time.Now()
	for range 3 {
		if _, err := client.Wait(ctx, limits.Per("outbound:weather", 2, "500ms")); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("the third call waited:", time.Since(began) >= 200*time.Millisecond)

	tooMuch := limits.Per("outbound:weather", 2, "500ms")
	tooMuch.Cost = 3
	_, err := client.Wait(ctx, tooMuch)
	fmt.Println(errors.Is(err, limits.ErrNeverFits))
	// Output:
	// the third call waited: true
	// true
}

// A token bucket allows a burst of 20 on top of 100 per minute.
func ExampleClient_Consume_burst() {
	client, done := exampleClient()
	defer done()
	request := limits.Per("api:burst", 100, "1m")
	request.Algorithm, request.Burst = limits.TokenBucket, 20
	request.Cost = 120

	reply, err := client.Consume(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Allowed)
	// Output: true
}

// Several limits are decided together: a request that one of them denies charges none.
func ExampleClient_Consume_severalLimits() {
	client, done := exampleClient()
	defer done()
	request := limits.Request{Limits: []limits.LimitSpec{
		{Key: "signup:global", Limit: 1000, Window: "1h"},
		{Key: "signup:ip:ab12", Limit: 1, Window: "1h"},
	}}

	for range 2 {
		reply, err := client.Consume(context.Background(), request)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Allowed, "global", reply.Limits[0].Remaining, "ip", reply.Limits[1].Remaining)
	}
	// Output:
	// true global 999 ip 0
	// false global 999 ip 0
}

// A check before the work decides whether it may run; a record after it charges the actual cost.
func ExampleClient_Record() {
	client, done := exampleClient()
	defer done()
	request := limits.Per("jobs:acme", 5, "day")

	before, err := client.Check(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	request.Cost = 7 // the actual cost
	after, err := client.Record(context.Background(), request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(before.Allowed, before.Remaining)
	fmt.Println(after.Allowed, after.Remaining)
	// Output:
	// true 5
	// false 0
}

// Check, work, record: nothing is charged until the work is done. Others may charge meanwhile, so the record may go past
// the limit. To hold the capacity during the work, reserve and settle instead.
func ExampleClient_Check() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	generate := func(user string) error {
		request := limits.Request{Limits: []limits.LimitSpec{
			{Key: "generations:" + user, Limit: 2, Window: "1h"},
			{Key: "generations:" + user, Limit: 50, Window: "day"},
		}}
		before, err := client.Check(ctx, request)
		if err != nil {
			return err
		}
		if !before.Allowed {
			return errors.New("denied by the limit per " + before.BlockedBy)
		}
		// ... the work; if it fails, nothing is charged
		_, err = client.Record(ctx, request)
		return err
	}

	for range 3 {
		fmt.Println(generate("7"))
	}
	// Output:
	// <nil>
	// <nil>
	// denied by the limit per 1h
}

// Reserve, work, settle: an estimate is charged before the work, so that nobody else uses the capacity, and replaced by
// the actual cost after it.
func ExampleClient_Settle() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	reserve := limits.Per("tokens:acme", 1000, "1h")
	reserve.Cost, reserve.ID = 400, "job-17" // the highest possible cost

	reply, err := client.Consume(ctx, reserve)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Allowed, reply.Remaining)
	// ... the work, which cost 150
	reply, err = client.Settle(ctx, reserve.ID, 150)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Allowed, reply.Remaining)
	// Output:
	// true 600
	// true 850
}

// Reserve as soon as there is room, work, settle. The reply has the ID that was charged, which may be that of a retry.
func ExampleClient_Wait_settle() {
	client, done := exampleClient()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reserve := limits.Per("tokens:globex", 1000, "3s")
	reserve.Cost = 800 // the highest possible cost

	for _, job := range []string{"job-18", "job-19"} {
		reserve.ID = job
		reply, err := client.Wait(ctx, reserve)
		if err != nil {
			log.Fatal(err)
		}
		// ... the work, which cost 700
		reply, err = client.Settle(ctx, reply.ID, 700)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Allowed, reply.Remaining)
	}
	// Output:
	// true 300
	// true 300
}

// A server writes to the request log without waiting for an answer.
func ExampleClient_LogRequest() {
	client, done := exampleClient()
	defer done()
	err := client.LogRequest(limits.LogEntry{
		Key: "key:acme", User: "7", Endpoint: "GET /v1/items/{id}", Method: "GET", Status: 200, Millis: 12,
	})
	fmt.Println(err)
	// Output: <nil>
}

// Errors of the service name the field at fault. Those that may go away by themselves are Temporary.
func ExampleError() {
	client, done := exampleClient()
	defer done()
	_, err := client.Consume(context.Background(), limits.Per("k", 10, "1 minute"))
	if e, ok := errors.AsType[*limits.Error](err); ok {
		fmt.Println(e.Status, e.Code, e.Field, e.Temporary())
	}
	// Output: 400 invalid_window window false
}

func ExampleClient_All() {
	client, done := exampleClient()
	defer done()
	ctx := context.Background()
	for _, key := range []string{"list:b", "list:a"} {
		if _, err := client.Consume(ctx, limits.Per(key, 10, "1h")); err != nil {
			log.Fatal(err)
		}
	}

	for counter, err := range client.All(ctx, "list:") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(counter.Key, counter.Used, "of", counter.Limit)
	}
	reset, err := client.Reset(ctx, limits.ResetRequest{Prefix: "list:"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("reset", reset.Reset)
	// Output:
	// list:a 1 of 10
	// list:b 1 of 10
	// reset 2
}

func ExampleClient_Watch() {
	client, done := exampleClient()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	events, err := client.Watch(ctx, limits.EventExceeded)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if _, err := client.Consume(ctx, limits.Per("watched:user:7", 1, "1h")); err != nil {
			log.Fatal(err)
		}
	}

	for event, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		if d, ok := event.Data.(*limits.Exceeded); ok && event.Subject == "watched:user:7" {
			fmt.Println(event.Type, event.Subject, d.Limit, d.Window, d.Denied)
			break
		}
	}
	// Output: limits.exceeded watched:user:7 1 1h 1
}
