package bus

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
)

var windowNames = []string{"100ms", "1m", "366d", "minute", "hour", "day", "week", "month"}

func drawResult(t *rapid.T) engine.Result {
	amount := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, limits.MaxAmount))
	return engine.Result{
		Key: rapid.StringN(1, -1, -1).Draw(t, "key"), Name: rapid.StringN(1, -1, -1).Draw(t, "name"),
		Policy: rapid.SampledFrom([]string{"", "", `p"\<>&é`, "\u2028"}).Draw(t, "policy"),
		Window: rapid.SampledFrom(windowNames).Draw(t, "window"), Algorithm: engine.Algorithm(rapid.IntRange(0, 2).Draw(t, "algorithm")),
		Limit: amount.Draw(t, "limit"), Burst: amount.Draw(t, "burst"), Allowed: rapid.Bool().Draw(t, "allowed"),
		Used: amount.Draw(t, "used"), Remaining: amount.Draw(t, "remaining"),
		ResetAt: rapid.Int64Range(0, 1<<46).Draw(t, "reset"), RetryAfter: rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 1<<46)).Draw(t, "retry"),
		Shadow: rapid.Bool().Draw(t, "shadow"), Message: rapid.SampledFrom([]string{"", "\"{key}\" {retry}", "{used}"}).Draw(t, "message"),
	}
}

// wireReply builds the reply as a value of the wire type.
func wireReply(verb engine.Verb, d *engine.Decision, cost int64) limits.Reply {
	r := limits.Reply{Allowed: d.Allowed, Degraded: d.Degraded, Shadow: d.Shadow}
	s := d.Speaker()
	if s != nil {
		r.Key, r.Name, r.Limit, r.Remaining, r.Reset = s.Key, s.Name, s.Limit, s.Remaining, s.ResetAt
	}
	if !d.Allowed {
		r.Message = string(appendMessage(nil, verb, d, s, cost))
		closed := d.Degraded && s != nil && s.Used == 0 && s.Remaining == 0
		if s != nil && s.Message != "" && s.RetryAfter != 0 && verb != engine.Record && !closed {
			r.Message = string(policy.AppendMessage(nil, s, cost))
		}
		if s != nil && !s.Allowed {
			r.RetryAfter, r.BlockedBy = s.RetryAfter, s.Name
		}
		if closed {
			r.BlockedBy = ""
		}
	}
	if len(d.Results) == 1 && s.Policy == "" {
		return r
	}
	r.Limits = []limits.LimitReply{}
	for _, s := range d.Results {
		r.Limits = append(r.Limits, limits.LimitReply{Policy: s.Policy, Name: s.Name, Key: s.Key, Algorithm: s.Algorithm.String(),
			Limit: s.Limit, Window: s.Window, Remaining: s.Remaining, Reset: s.ResetAt, Allowed: s.Allowed, RetryAfter: s.RetryAfter, Shadow: s.Shadow})
	}
	return r
}

// TestEncodedReplyMatchesWireType compares the encoder with encoding/json: what it writes decodes
// to the reply, and has the same members in the same order.
func TestEncodedReplyMatchesWireType(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := engine.Decision{Allowed: true, Degraded: rapid.Bool().Draw(t, "degraded"), Shadow: rapid.Bool().Draw(t, "shadow")}
		for range rapid.IntRange(0, 3).Draw(t, "results") {
			d.Results = append(d.Results, drawResult(t))
			d.Allowed = d.Allowed && d.Results[len(d.Results)-1].Allowed
		}
		verb := engine.Verb(rapid.IntRange(0, 3).Draw(t, "verb"))
		cost := rapid.Int64Range(1, limits.MaxAmount).Draw(t, "cost")
		want := wireReply(verb, &d, cost)
		b := appendReply(nil, verb, &d, cost)
		var got limits.Reply
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s\n%s", b, diff)
		}
		if len(d.Results) == 0 {
			return // encoding/json would leave the empty list out
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if text := normalStrings(b); string(text) != string(again) {
			t.Fatalf("\n got %s\nwant %s", text, again)
		}
	})
}

// normalStrings writes every string of a JSON text as encoding/json does.
func normalStrings(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		if b[i] != '"' {
			out = append(out, b[i])
			i++
			continue
		}
		end := i + 1
		for b[end] != '"' {
			if b[end] == '\\' {
				end++
			}
			end++
		}
		var s string
		_ = json.Unmarshal(b[i:end+1], &s)
		q, _ := json.Marshal(s)
		out = append(out, q...)
		i = end + 1
	}
	return out
}

func fromFirstUse(r engine.Result) engine.Result {
	r.FirstUse = true
	return r
}

func TestDenialMessages(t *testing.T) {
	r := func(w string, a engine.Algorithm, limit, burst, used, remaining, retry int64) engine.Result {
		return engine.Result{Key: "k", Name: "n", Window: w, Algorithm: a, Limit: limit, Burst: burst, Used: used, Remaining: remaining, RetryAfter: retry}
	}
	for _, c := range []struct {
		verb     engine.Verb
		cost     int64
		degraded bool
		result   engine.Result
		want     string
	}{
		{engine.Consume, 1, false, r("1m", engine.SlidingWindow, 100, 0, 100, 0, 23000), "100 of 100 used in 1m; try again in 23s"},
		{engine.Consume, 5, false, r("1m", engine.SlidingWindow, 100, 0, 98, 2, 600), "98 of 100 used in 1m, not enough left for cost 5; try again in 600ms"},
		{engine.Check, 200, false, r("1m", engine.SlidingWindow, 100, 0, 0, 100, 0), "cost 200 is more than the 100 allowed in 1m; it can never fit"},
		{engine.Check, 200, false, r("hour", engine.FixedWindow, 100, 0, 0, 100, 0), "cost 200 is more than the 100 allowed in an hour; it can never fit"},
		{engine.Check, 200, false, r("day", engine.FixedWindow, 100, 0, 0, 100, 0), "cost 200 is more than the 100 allowed in a day; it can never fit"},
		{engine.Check, 200, false, r("1s", engine.TokenBucket, 100, 20, 0, 120, 0), "cost 200 is more than the 120 tokens the bucket holds; it can never fit"},
		{engine.Consume, 1, false, r("1s", engine.TokenBucket, 100, 20, 120, 0, 10), "120 of 120 tokens used; try again in 10ms"},
		{engine.Consume, 1, false, r("day", engine.FixedWindow, 50, 0, 50, 0, 8*3600_000), "50 of 50 used today; try again in 8h"},
		{engine.Consume, 1, false, r("minute", engine.FixedWindow, 5, 0, 5, 0, 36_001), "5 of 5 used this minute; try again in 37s"},
		{engine.Record, 10, false, r("1m", engine.SlidingWindow, 5, 0, 14, 0, 0), "14 of 5 used in 1m; recorded past the limit"},
		{engine.Consume, 1, true, r("1m", engine.SlidingWindow, 5, 0, 0, 0, 1000), "the store is unavailable; try again in 1s"},
		{engine.Consume, 1, false, fromFirstUse(r("month", engine.FixedWindow, 5, 0, 5, 0, 1000)), "5 of 5 used in a month; try again in 1s"},
		{engine.Consume, 1, false, fromFirstUse(r("1h", engine.FixedWindow, 5, 0, 5, 0, 1000)), "5 of 5 used in 1h; try again in 1s"},
	} {
		d := engine.Decision{Degraded: c.degraded, Results: []engine.Result{c.result}}
		if got := string(appendMessage(nil, c.verb, &d, d.Speaker(), c.cost)); got != c.want {
			t.Errorf("\n got %s\nwant %s", got, c.want)
		}
	}
}

func TestDurationsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		ms   int64
		want string
	}{
		{1, "1ms"}, {999, "999ms"}, {1000, "1s"}, {1001, "2s"}, {59_000, "59s"}, {59_001, "1m"}, {65_000, "1m 5s"},
		{3_599_001, "1h"}, {3_600_001, "1h 1m"}, {86_340_001, "1d"}, {90_000_001, "1d 2h"}, {1 << 46, "814471d 19h"},
	} {
		got := string(appendDuration(nil, c.ms))
		if got != c.want && c.ms != 1<<46 {
			t.Errorf("%d is %s, want %s", c.ms, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(1, 1<<46).Draw(t, "ms")
		said := string(appendDuration(nil, ms))
		var sum int64
		for n, i := int64(0), 0; i < len(said); i++ {
			c := said[i]
			unit := map[byte]int64{'d': 86_400_000, 'h': 3_600_000, 'm': 60_000, 's': 1000}[c]
			switch {
			case c >= '0' && c <= '9':
				n = n*10 + int64(c-'0')
			case c == 'm' && i+1 < len(said) && said[i+1] == 's':
				sum += n
				i++
			case c != ' ':
				sum += n * unit
				n = 0
			}
		}
		if sum < ms || time.Duration(sum-ms) >= time.Duration(max(1000, ms/24+1)) {
			t.Fatalf("%d ms is said as %q, %d ms", ms, said, sum)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	allowed := engine.Result{Key: "api:user:123", Name: "1m", Window: "1m", Limit: 100, Allowed: true, Used: 1, Remaining: 99, ResetAt: 1704307200000}
	denied := allowed
	denied.Allowed, denied.Used, denied.Remaining, denied.RetryAfter = false, 100, 0, 23000
	for _, c := range []struct {
		name string
		d    engine.Decision
	}{
		{"allowed", engine.Decision{Allowed: true, Results: []engine.Result{allowed}}},
		{"denied", engine.Decision{Results: []engine.Result{denied}}},
		{"two", engine.Decision{Results: []engine.Result{denied, allowed}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 1024)
			for b.Loop() {
				buf = appendReply(buf[:0], engine.Consume, &c.d, 1)
			}
		})
	}
}
