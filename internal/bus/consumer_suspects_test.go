package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// numberedMsg is the denial with that number, which is also its place in the stream.
type numberedMsg struct {
	ackless
	t *testing.T
	n int
}

func (numberedMsg) Subject() string { return limits.EventExceeded }

func (m numberedMsg) Data() []byte {
	e := exceeded(m.n)
	return eventMsg(m.t, &e).Data
}

func (m numberedMsg) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: uint64(m.n)}, Timestamp: time.Now()}, nil
}

// TestAnEventThatFailedAloneIsTriedAlone, after all others: they cost one call of the store, and do not wait for it. The log
// tells of its first failure.
func TestAnEventThatFailedAloneIsTriedAlone(t *testing.T) {
	t.Parallel()
	var calls []string
	k, log := newTaker(), new(logBuffer)
	k.refuse = func(events []alerts.Event) error {
		ids := make([]string, len(events))
		for i := range events {
			ids[i] = strings.TrimPrefix(events[i].ID, "id-")
		}
		if calls = append(calls, strings.Join(ids, " ")); slices.Contains(ids, "2") {
			return errors.New("no room")
		}
		return nil
	}
	c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []struct {
		messages []int
		want     []string
	}{
		{[]int{1, 2, 3, 4}, []string{"1 2 3 4", "", "1 2", "", "1", "2", "", "3 4"}},
		{[]int{2, 5, 6}, []string{"5 6", "2", ""}},
		{[]int{2}, []string{"2", ""}},
	} {
		calls = nil
		var messages []jetstream.Msg
		for _, n := range b.messages {
			messages = append(messages, numberedMsg{t: t, n: n})
		}
		if err := c.handle(t.Context(), messages); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(calls, b.want) {
			t.Errorf("of %d the store was given %q, want %q", b.messages, calls, b.want)
		}
	}
	if n := strings.Count(log.String(), "will retry"); n != 1 || !strings.Contains(log.String(), "event=id-2 sequence=2 ") {
		t.Errorf("%d lines of its tries:\n%s", n, log)
	}
}

// TestAStoreThatFailsFailsTheBatch, whichever part of it the store was given: what was not taken is given back.
func TestAStoreThatFailsFailsTheBatch(t *testing.T) {
	t.Parallel()
	for failing, back := range map[string]int{"id-1": 3, "id-2": 2, "id-3": 1} {
		k, away := newTaker(), errors.New("connection refused")
		gone := false
		k.refuse = func(events []alerts.Event) error {
			gone = gone || slices.ContainsFunc(events, func(e alerts.Event) bool { return e.ID == failing })
			if gone {
				return away
			}
			return nil
		}
		c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		c.strikes[2], c.strikes[3] = 1, 1
		var messages []jetstream.Msg
		for n := 1; n <= 3; n++ {
			messages = append(messages, numberedMsg{t: t, n: n})
		}
		err = c.handle(t.Context(), messages)
		if !errors.Is(err, away) || len(c.toReturn) != back || c.strikes[3] != 1 {
			t.Errorf("%s: %v, %d are given back, want %d; strikes %v", failing, err, len(c.toReturn), back, c.strikes)
		}
	}
}

// poisonCounter counts the messages that are dead-lettered.
type poisonCounter struct {
	noConsumerObserver
	n int
}

func (p *poisonCounter) EventPoisoned() { p.n++ }

// TestADeadLetterHasAReasonThatCanBeShown, and is counted. The log has a line of it.
func TestADeadLetterHasAReasonThatCanBeShown(t *testing.T) {
	t.Parallel()
	k, log, seen := newTaker(), new(logBuffer), new(poisonCounter)
	c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Observer: seen,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	c.poison(t.Context(), &delivered{message: ackless{}, sequence: 7}, "a\x1b[31m\n"+strings.Repeat("b", 600))
	if len(k.poisoned) != 1 || seen.n != 1 {
		t.Fatalf("dead-lettered %+v, counted %d", k.poisoned, seen.n)
	}
	if reason := k.poisoned[0].Reason; strings.ContainsAny(reason, "\x1b\n") || len(reason) != 500+len("…") {
		t.Errorf("%q", reason)
	}
	if !strings.Contains(log.String(), "dead-lettered; see: limiter alerts dead") || !strings.Contains(log.String(), "last=7 ") {
		t.Error(log)
	}
}

// TestFewEventsAreSuspects: beyond the bound counting starts again, with the event that has failed now.
func TestFewEventsAreSuspects(t *testing.T) {
	t.Parallel()
	k := newTaker()
	c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(n int) {
		c.strike(t.Context(), &delivered{message: numberedMsg{t: t, n: n}, sequence: uint64(n)}, errors.New("no room"))
	}
	for n := range maxSuspects {
		fail(n)
	}
	if len(c.strikes) != maxSuspects {
		t.Errorf("%d events have strikes, want %d", len(c.strikes), maxSuspects)
	}
	if fail(7); len(c.strikes) != 1 || c.strikes[7] != 1 {
		t.Errorf("%d events have strikes, and the last one %d; want 1, and 1", len(c.strikes), c.strikes[7])
	}
	for range maxStrikes - 2 {
		fail(7)
	}
	if len(k.poisoned) > 0 {
		t.Errorf("dead-lettered %+v after %d tries", k.poisoned, maxStrikes-1)
	}
	if fail(7); len(k.poisoned) != 1 || len(c.strikes) != 0 || c.struck.Load() != nil {
		t.Errorf("%d dead-lettered after %d tries, strikes %v, %v", len(k.poisoned), maxStrikes, c.strikes, c.struck.Load())
	}
}

// TestTheLargestEventIsTaken, and one byte more is too large.
func TestTheLargestEventIsTaken(t *testing.T) {
	t.Parallel()
	e := exceeded(1)
	data := string(eventMsg(t, &e).Data)
	data += strings.Repeat(" ", maxEventBytes-len(data))
	if got, err := parseEvent(limits.EventExceeded, []byte(data), time.Now()); err != nil || got.ID != e.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseEvent(limits.EventExceeded, []byte(data+" "), time.Now()); err == nil || !strings.Contains(err.Error(), fmt.Sprint(maxEventBytes+1)) {
		t.Error(err)
	}
}
