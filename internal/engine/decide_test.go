package engine

import (
	"encoding/json"
	"errors"
	"testing"
)

// turn is a request of a scripted history and its expected answer; -1 is not compared.
type turn struct {
	at         string
	verb       Verb
	cost       int64
	allowed    bool
	remaining  int64
	resetAt    string
	retryAfter int64
}

// Histories from the systems that this one replaces.
func TestDecisionHistories(t *testing.T) {
	t.Parallel()
	routes := limitOf(t, FixedWindow, 20, "1m")
	quota := limitOf(t, FixedWindow, 100, "1m")
	quota.FirstUse = true
	burst := limitOf(t, TokenBucket, 100, "1m")
	burst.Burst = 20
	recovering := limitOf(t, TokenBucket, 1, "1m")
	recovering.Burst = 9
	daily := calendar(t, "day", "UTC")
	daily.Limit = 50
	money := calendar(t, "day", "Europe/Berlin")
	money.Limit = 100
	monthly := calendar(t, "month", "UTC")
	monthly.Limit, monthly.FirstUse = 50, true
	address := limitOf(t, SlidingWindow, 5, "1m")
	email := limitOf(t, SlidingWindow, 3, "1h")

	for _, c := range []struct {
		name  string
		limit Limit
		turns []turn
	}{
		{"20 a minute on a route, aligned", routes, []turn{
			{"2024-01-01T12:00:10Z", Consume, 1, true, 19, "2024-01-01T12:01:00Z", 0},
			{"2024-01-01T12:00:20Z", Consume, 19, true, 0, "2024-01-01T12:01:00Z", 0},
			{"2024-01-01T12:00:37Z", Consume, 1, false, 0, "2024-01-01T12:01:00Z", 23_000},
			{"2024-01-01T12:00:59.999Z", Consume, 1, false, 0, "2024-01-01T12:01:00Z", 1},
			{"2024-01-01T12:01:00Z", Consume, 1, true, 19, "2024-01-01T12:02:00Z", 0},
			{"2024-01-01T12:01:01Z", Consume, 21, false, 19, "2024-01-01T12:02:00Z", 0},
			{"2024-01-01T12:01:02Z", Check, 20, false, 19, "2024-01-01T12:02:00Z", 58_000},
			{"2024-01-01T12:01:03Z", Refund, 5, true, 20, "2024-01-01T12:01:03Z", 0},
		}},
		{"100 in 60 s from the first request", quota, []turn{
			{"2024-01-01T12:00:10Z", Check, 1, true, 100, "2024-01-01T12:00:10Z", 0},
			{"2024-01-01T12:00:37Z", Consume, 100, true, 0, "2024-01-01T12:01:37Z", 0},
			{"2024-01-01T12:01:00Z", Consume, 1, false, 0, "2024-01-01T12:01:37Z", 37_000},
			{"2024-01-01T12:01:37Z", Check, 1, true, 100, "2024-01-01T12:01:37Z", 0},
			{"2024-01-01T12:02:00Z", Consume, 1, true, 99, "2024-01-01T12:03:00Z", 0},
		}},
		{"a burst of 20 on top of 100 a minute", burst, []turn{
			{"2024-01-01T12:00:00Z", Check, 121, false, 120, "2024-01-01T12:00:00Z", 0},
			{"2024-01-01T12:00:00Z", Consume, 120, true, 0, "2024-01-01T12:01:12Z", 0},
			{"2024-01-01T12:00:00Z", Consume, 1, false, 0, "2024-01-01T12:01:12Z", 600},
			{"2024-01-01T12:00:00.599Z", Consume, 1, false, 0, "2024-01-01T12:01:12Z", 1},
			{"2024-01-01T12:00:00.6Z", Consume, 1, true, 0, "2024-01-01T12:01:12.600Z", 0},
			{"2024-01-01T12:00:30Z", Check, 50, false, 49, "2024-01-01T12:01:12.600Z", 600},
			{"2024-01-01T12:01:12.6Z", Check, 120, true, 120, "2024-01-01T12:01:12.6Z", 0},
		}},
		{"10 at once that recover 1 a minute", recovering, []turn{
			{"2024-01-01T12:00:00Z", Consume, 10, true, 0, "2024-01-01T12:10:00Z", 0},
			{"2024-01-01T12:00:20Z", Consume, 1, false, 0, "2024-01-01T12:10:00Z", 40_000},
			{"2024-01-01T12:01:00Z", Consume, 1, true, 0, "2024-01-01T12:11:00Z", 0},
			{"2024-01-01T12:03:30Z", Check, 3, false, 2, "2024-01-01T12:11:00Z", 30_000},
			{"2024-01-01T12:03:30Z", Record, 5, false, 0, "2024-01-01T12:16:00Z", 450_000},
			{"2024-01-01T12:10:59.999Z", Check, 5, false, 4, "2024-01-01T12:16:00Z", 1},
			{"2024-01-01T12:11:00Z", Check, 5, true, 5, "2024-01-01T12:16:00Z", 0},
			{"2024-01-01T13:00:00Z", Check, 10, true, 10, "2024-01-01T13:00:00Z", 0},
		}},
		{"50 generations a day, in UTC", daily, []turn{
			{"2024-02-28T16:00:00Z", Check, 1, true, 50, "2024-02-28T16:00:00Z", 0},
			{"2024-02-28T16:00:00Z", Record, 49, true, 1, "2024-02-29T00:00:00Z", 0},
			{"2024-02-28T16:00:00Z", Record, 2, false, 0, "2024-02-29T00:00:00Z", 8 * 3_600_000},
			{"2024-02-28T23:59:59.999Z", Consume, 1, false, 0, "2024-02-29T00:00:00Z", 1},
			{"2024-02-29T00:00:00Z", Consume, 1, true, 49, "2024-03-01T00:00:00Z", 0},
		}},
		{"100 cents on a day of 23 hours", money, []turn{
			{"2024-03-30T23:00:00Z", Consume, 60, true, 40, "2024-03-31T22:00:00Z", 0},
			{"2024-03-31T00:00:00Z", Consume, 41, false, 40, "2024-03-31T22:00:00Z", 22 * 3_600_000},
			{"2024-03-31T22:00:00Z", Consume, 41, true, 59, "2024-04-01T22:00:00Z", 0},
		}},
		{"50 a month from the first use", monthly, []turn{
			{"2024-01-31T09:00:00Z", Consume, 50, true, 0, "2024-02-29T09:00:00Z", 0},
			{"2024-02-29T08:00:00Z", Consume, 1, false, 0, "2024-02-29T09:00:00Z", 3_600_000},
			{"2024-02-29T09:00:00Z", Consume, 1, true, 49, "2024-03-29T09:00:00Z", 0},
		}},
		{"5 a minute from an address, in buckets of a second", address, []turn{
			{"2024-01-01T12:00:00.2Z", Consume, 2, true, 3, "2024-01-01T12:01:01Z", 0},
			{"2024-01-01T12:00:00.8Z", Consume, 1, true, 2, "2024-01-01T12:01:01Z", 0},
			{"2024-01-01T12:00:30Z", Consume, 2, true, 0, "2024-01-01T12:01:31Z", 0},
			{"2024-01-01T12:00:40Z", Consume, 1, false, 0, "2024-01-01T12:01:31Z", 21_000},
			{"2024-01-01T12:00:40Z", Check, 4, false, 0, "2024-01-01T12:01:31Z", 51_000},
			{"2024-01-01T12:01:00.999Z", Consume, 1, false, 0, "2024-01-01T12:01:31Z", 1},
			{"2024-01-01T12:01:01Z", Consume, 1, true, 2, "2024-01-01T12:02:02Z", 0},
			{"2024-01-01T12:01:31Z", Refund, 9, true, 5, "2024-01-01T12:01:31Z", 0},
		}},
		{"3 an hour to an e-mail address, in buckets of a minute", email, []turn{
			{"2024-01-01T12:00:42Z", Consume, 1, true, 2, "2024-01-01T13:01:00Z", 0},
			{"2024-01-01T12:01:00Z", Consume, 2, true, 0, "2024-01-01T13:02:00Z", 0},
			{"2024-01-01T12:59:00Z", Consume, 1, false, 0, "2024-01-01T13:02:00Z", 120_000},
			{"2024-01-01T13:01:00Z", Consume, 1, true, 0, "2024-01-01T14:02:00Z", 0},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := history{limit: c.limit}
			for _, turn := range c.turns {
				h.now = instant(t, turn.at)
				r := h.ask(turn.verb, turn.cost)
				if r.Allowed != turn.allowed || r.Remaining != turn.remaining || r.RetryAfter != turn.retryAfter ||
					r.ResetAt != instant(t, turn.resetAt) {
					t.Fatalf("%s %s %d: allowed %t, %d remaining until %s, retry after %d; want %+v",
						turn.at, turn.verb, turn.cost, r.Allowed, r.Remaining, show(r.ResetAt, h.limit.zone()), r.RetryAfter, turn)
				}
			}
		})
	}
}

// One request against three tiers: the one that denies represents the decision, and none is
// charged.
func TestDenyingLimitRepresentsDecision(t *testing.T) {
	t.Parallel()
	limits := []Limit{
		limitOf(t, SlidingWindow, 1000, "1m"), limitOf(t, SlidingWindow, 5, "1m"), limitOf(t, SlidingWindow, 3, "1h"),
	}
	states := []*State{{}, {}, {}}
	for i := range 4 {
		d := decide(Consume, limits, states, noon+int64(i), 1)
		if want := i < 3; d.Allowed != want {
			t.Fatalf("request %d: allowed %t", i, d.Allowed)
		}
		if speaker := d.Speaker(); speaker.Name != "1h" || speaker.Allowed != d.Allowed {
			t.Errorf("request %d: %+v speaks", i, speaker)
		}
	}
	for i, want := range []int64{997, 2, 0} {
		if r := decide(Check, limits, states, noon, 1).Results[i]; r.Remaining != want {
			t.Errorf("%d a %s: %d remaining; want %d", r.Limit, r.Window, r.Remaining, want)
		}
	}
}

// 10,000 requests a minute for ten minutes leave a counter that is no larger than after the first.
func TestSlidingWindowStateStaysSmall(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, SlidingWindow, MaxAmount, "1m"), now: noon}
	most := 0
	for range 100_000 {
		h.play(op{6, Consume, 1})
		most = max(most, len(h.state.sliding.buckets))
	}
	if most > subBuckets+1 {
		t.Errorf("%d buckets", most)
	}
	if b := h.state.Append(nil); len(b) > 400 {
		t.Errorf("%d bytes", len(b))
	}
}

// A stored counter is shown from its spec alone.
func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, a := range algorithms {
		h := history{limit: limitOf(t, a, 10, "1m"), now: noon}
		r := h.ask(Consume, 3)
		spec, err := json.Marshal(h.limit.Spec())
		if err != nil {
			t.Fatal(err)
		}
		stored := []StoredCounter{{CounterID: h.limit.CounterID, Spec: spec, State: h.state.Append(nil)}}
		page, err := describe(nil, stored, h.now)
		want := Counter{CounterID: h.limit.CounterID, Spec: h.limit.Spec(), Used: 3, Remaining: 7, ResetAt: r.ResetAt}
		if err != nil || len(page) != 1 || page[0] != want {
			t.Errorf("%s: %+v, %v; want %+v", a, page, err, want)
		}
		if page, err = describe(nil, stored, r.ResetAt); err != nil || len(page) > 0 {
			t.Errorf("%s, once free: %+v, %v", a, page, err)
		}
		l, s, err := stored[0].decode()
		if s.advance(&l, r.ResetAt); err != nil || s.remaining(&l) != 10 {
			t.Errorf("%s, once free: %d remaining, %v", a, s.remaining(&l), err)
		}
		stored[0].State = []byte("junk")
		if _, err = describe(nil, stored, h.now); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: junk is described: %v", a, err)
		}
	}
}

// TestTheStrictestLimitSpeaks, whatever the order: one that is enforced before one in shadow, a
// denial before what is allowed, the longest wait, which is the one without end, and the least that remains.
func TestTheStrictestLimitSpeaks(t *testing.T) {
	t.Parallel()
	strictest := []Result{
		{}, {RetryAfter: 900}, {RetryAfter: 5}, {Allowed: true}, {Allowed: true, Remaining: 9},
		{Shadow: true}, {Shadow: true, RetryAfter: 7}, {Shadow: true, Allowed: true, Remaining: 3},
	}
	for i, first := range strictest {
		for _, second := range strictest[i+1:] {
			for _, results := range [][]Result{{first, second}, {second, first}} {
				if got := (&Decision{Results: results}).Speaker(); *got != first {
					t.Errorf("of %+v speaks %+v", results, *got)
				}
			}
		}
	}
	if got := (&Decision{}).Speaker(); got != nil {
		t.Errorf("of nothing speaks %+v", got)
	}
}

// A sliding window that was charged in each of its sub-buckets has one more than they are, since the
// first leaves late, and can be stored.
func TestAChargeInEverySubBucketIsStored(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, SlidingWindow, 1000, "1m"), now: noon}
	for range 3 * subBuckets {
		h.play(op{1000, Consume, 1})
		h.state = *stored(t, &h.state)
	}
	if n := len(h.state.sliding.buckets); n != subBuckets+1 {
		t.Errorf("%d buckets", n)
	}
}
