package bus

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestPoisonIsStoredAndTerminated(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 0, 1)
	e := exceeded(9)
	other := eventMsg(t, &e)
	long := exceeded(8)
	long.Key = strings.Repeat("k", 257)
	tooLong := eventMsg(t, &long)
	bad := []struct{ data, reason string }{
		{"", "read event: unexpected end of JSON input"},
		{strings.Repeat("x", 2*alerts.MaxPoisonBytes), "read event: invalid character 'x'"},
		{strings.Repeat(" ", maxEventBytes+1), "the message has 65537 bytes; an event may have at most 65536"},
		{string(tooLong.Data), "key of the event has 257 bytes; want 1 to 256"},
		{string(other.Data), "an event of type limits.exceeded arrived on subject limits.warning"},
	}
	for _, b := range bad {
		if _, err := js.Publish(t.Context(), limits.EventWarning, []byte(b.data)); err != nil {
			t.Fatal(err)
		}
	}
	publishEvents(t, js, 1, 2)
	k := newTaker()
	k.refusePoison = 3
	consume(t, nc, k)
	k.wait(t, 2, len(bad))
	settled(t, js)
	slices.SortFunc(k.poisoned, func(a, b alerts.Poison) int { return int(a.Sequence) - int(b.Sequence) })
	for i, b := range bad {
		p := k.poisoned[i]
		if p.Sequence != uint64(i+2) || p.Subject != limits.EventWarning || !strings.HasPrefix(p.Reason, b.reason) ||
			string(p.Data) != b.data[:min(len(b.data), alerts.MaxPoisonBytes)] || p.At == 0 {
			t.Errorf("%d: %.200v, want %s", i, p, b.reason)
		}
	}
	if len(k.poisoned) != len(bad) || len(k.events) != 2 {
		t.Errorf("%d dead-lettered, %d taken", len(k.poisoned), len(k.events))
	}
}

// TestAlerterIgnoresReports. The consumer receives reports only to see what the stream has lost.
// They are not dead-lettered, which would look like a failure every day, and not delivered again
// and again.
func TestAlerterIgnoresReports(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	report := `{"specversion":"1.0","id":"report-2026-05-17","source":"limits","type":"limits.report","time":"2026-05-18T00:00:00Z","data":{"day":"2026-05-17"}}`
	if _, err := js.Publish(t.Context(), limits.EventReport, []byte(report)); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 0, 1)
	k := newTaker()
	stop := consume(t, nc, k)
	k.wait(t, 1, 0)
	if i := settled(t, js); i.AckFloor.Stream != 2 || i.NumRedelivered != 0 {
		t.Errorf("%+v", i)
	}
	stop()
	if len(k.poisoned) != 0 || len(k.events) != 1 {
		t.Errorf("dead-lettered %+v; taken %+v", k.poisoned, k.events)
	}
}

// TestFloodOfJunkNeitherFillsLogNorBlocksEvents: while poison cannot be stored, what anybody may
// publish neither fills the log nor holds up events.
func TestFloodOfJunkNeitherFillsLogNorBlocksEvents(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	const junk = 200
	for range junk {
		if _, err := js.Publish(t.Context(), limits.EventWarning, []byte("junk")); err != nil {
			t.Fatal(err)
		}
	}
	publishEvents(t, js, 0, 1)
	k, lines := newTaker(), &countingHandler{}
	asked := 0
	keep := func(ctx context.Context, p alerts.Poison) error {
		if asked++; asked == 1 {
			return errors.New("away")
		}
		return k.poison(ctx, p)
	}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(lines), Take: k.take, Poison: keep, retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	messages := 0
	firstBatch := func(ctx context.Context) {
		if err := c.prepare(ctx); err != nil {
			t.Fatal(err)
		}
		pull, err := c.consumer.FetchNoWait(junk + 1)
		if err != nil {
			t.Fatal(err)
		}
		var all []jetstream.Msg
		for m := range pull.Messages() {
			all = append(all, m)
		}
		messages = len(all)
		if err := c.handle(ctx, all); err != nil {
			t.Fatal(err)
		}
	}
	firstBatch(t.Context())
	if messages != junk+1 || asked != 1 || len(k.events) != 1 {
		t.Errorf("of %d messages the store was asked to keep %d, want 1; %d events taken, want 1", messages, asked, len(k.events))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	k.wait(t, 1, junk)
	stop()
	<-ended
	// One line of what could not be kept, and one each 10 s.
	if n := lines.errors(); n > junk/4 {
		t.Errorf("%d lines of %d messages", n, junk)
	}
}

// TestBadEventDoesNotBlockOthers: the store refuses every batch that has one of two events.
func TestBadEventDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 0, 300)
	k := newTaker()
	var tries [2]int
	k.refuse = func(events []alerts.Event) error {
		for _, e := range events {
			for i, id := range []string{"id-77", "id-200"} {
				if e.ID == id {
					if len(events) == 1 {
						tries[i]++
					}
					return errors.New("no such partition")
				}
			}
		}
		return nil
	}
	consume(t, nc, k)
	k.wait(t, 298, 2)
	settled(t, js)
	if tries != [2]int{maxStrikes, maxStrikes} {
		t.Errorf("tried alone %v times", tries)
	}
	for _, p := range k.poisoned {
		if p.Reason != "gave up after 10 tries: no such partition" || !strings.Contains(string(p.Data), `"denied":41`) {
			t.Errorf("%+v", p)
		}
	}
}

// TestStoreOutagePoisonsNothing: the store fails more often than an event has tries. First it fails
// for everything, and then, while it answers otherwise, for events as often as one event may fail.
func TestStoreOutagePoisonsNothing(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 0, 20)
	k := newTaker()
	asked := 0
	k.refuse = func(events []alerts.Event) error {
		if asked++; asked < 6 || asked%2 == 0 && asked < 6+2*(maxStrikes-1) && len(events) > 0 {
			return errors.New("connection refused")
		}
		return nil
	}
	consume(t, nc, k)
	k.wait(t, 20, 0)
	settled(t, js)
	if len(k.poisoned) != 0 {
		t.Errorf("dead-lettered: %+v", k.poisoned)
	}
}

// TestNothingIsPulledDuringStoreOutage: events would only be passed back and forth.
func TestNothingIsPulledDuringStoreOutage(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(3)
	given := 0
	l.k.refuse = func(events []alerts.Event) error {
		given += len(events)
		return errors.New("connection refused")
	}
	for range 3 {
		if err := l.c.pass(t.Context()); err == nil {
			t.Fatal("a pass without a store")
		}
	}
	if given > 3 {
		t.Errorf("a store that is away was given %d events, want 3", given)
	}
	l.k.refuse = nil
	l.pass(3, 0)
}

// TestOutageWhileHalvingReturnsAllEvents, for whoever has the store again. What is not given back
// comes after half a minute, here an hour.
func TestOutageWhileHalvingReturnsAllEvents(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]string{
		"while a batch is halved":                 "x.xx",     // all, not the store, the first half, the store
		"while those that failed alone are tried": "x.x.x.xx", // all, the first and the second alone, and the first once more with the store
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newSmallStream(t)
			cfg := consumerConfig()
			cfg.AckWait = time.Hour
			if _, err := l.js.CreateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
				t.Fatal(err)
			}
			l.publish(2)
			l.k.refuse = func([]alerts.Event) error {
				if refused == "" {
					return nil
				}
				now := refused[0]
				if refused = refused[1:]; now == 'x' {
					return errors.New("connection refused")
				}
				return nil
			}
			for len(l.k.events) < 2 {
				if err := l.c.prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
				pull, err := l.c.consumer.Fetch(2, jetstream.FetchMaxWait(20*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				var both []jetstream.Msg
				for m := range pull.Messages() {
					both = append(both, m)
				}
				if len(both) != 2 {
					t.Fatalf("%d events came again, want both", len(both))
				}
				_ = l.c.handle(t.Context(), both)
				l.c.returnAll()
			}
			if refused != "" || len(l.k.poisoned) > 0 {
				t.Errorf("still to be refused %q; dead-lettered %+v", refused, l.k.poisoned)
			}
		})
	}
}
