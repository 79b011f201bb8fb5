package storetest

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/usage"
)

var usageTests = []test{
	{"counts of a minute add up, and the peak is that of the busiest minute", usageAddsUp},
	{"top selects and orders", usageTop},
	{"writers of the same counts lose none and do not deadlock", usageWriters},
	{"a rollup changes no sum and no peak", usageRollup},
	{"old counts are removed, at most max at once", usagePrune},
	{"traffic, slowest endpoints and errors of the request log", requestLog},
	{"old requests are removed, at most max at once", requestPrune},
}

const (
	minute = int64(60_000)
	hour   = 60 * minute
	// noon is a whole hour.
	noon = int64(1_700_000_000_000) / hour * hour
)

func usageCount(key, user string, at, allowed, denied, cost int64) usage.Count {
	return usage.Count{ID: usage.ID{Key: key, Policy: "p", User: user}, At: at, Allowed: allowed, Denied: denied, Cost: cost}
}

func addUsage(t *testing.T, s usage.Store, counts ...usage.Count) {
	t.Helper()
	if err := s.AddUsage(within(t), counts); err != nil {
		t.Fatalf("add usage: %v", err)
	}
}

// topOf asks for everything, unless change narrows the query.
func topOf(t *testing.T, s usage.Store, change func(q *usage.TopQuery)) []usage.Top {
	t.Helper()
	q := usage.TopQuery{By: usage.ByUsed, Until: future, Max: 10}
	change(&q)
	top, err := s.TopUsage(within(t), q)
	if err != nil {
		t.Fatalf("top: %v", err)
	}
	return top
}

func topRow(key, user string, allowed, denied, cost, peak int64) usage.Top {
	return usage.Top{ID: usage.ID{Key: key, Policy: "p", User: user}, Allowed: allowed, Denied: denied, Cost: cost, Peak: peak}
}

func usageAddsUp(t *testing.T, s Store) {
	all := func(*usage.TopQuery) {}
	equal(t, "top of nothing", topOf(t, s, all), nil)
	addUsage(t, s)
	addUsage(t, s, usageCount("a", "u", noon, 3, 1, 6), usageCount("a", "v", noon, 1, 0, 1))
	addUsage(t, s, usageCount("a", "u", noon, 2, 2, 4), usageCount("a", "u", noon+minute, 1, 0, 5))
	equal(t, "top", topOf(t, s, all), []usage.Top{topRow("a", "u", 6, 3, 15, 8), topRow("a", "v", 1, 0, 1, 1)})
}

func usageTop(t *testing.T, s Store) {
	other := usageCount("b%:1", "u", noon, 1, 30, 1)
	other.Policy = "q"
	addUsage(t, s, usageCount("b:1", "u", noon, 10, 20, 40), usageCount("b:2", "v", noon+minute, 20, 10, 30), usageCount("c", "u", noon+minute, 5, 0, 90), other)
	for _, c := range []struct {
		name   string
		change func(q *usage.TopQuery)
		want   []string
	}{
		{"by cost", func(*usage.TopQuery) {}, []string{"c", "b:1", "b:2", "b%:1"}},
		{"by denials, without those that have none", func(q *usage.TopQuery) { q.By = usage.ByDenied }, []string{"b%:1", "b:1", "b:2"}},
		{"by allowed", func(q *usage.TopQuery) { q.By = usage.ByAllowed }, []string{"b:2", "b:1", "c", "b%:1"}},
		{"the first", func(q *usage.TopQuery) { q.Max = 1 }, []string{"c"}},
		{"since", func(q *usage.TopQuery) { q.Since = noon + 1 }, []string{"c", "b:2"}},
		{"until", func(q *usage.TopQuery) { q.Until = noon + minute }, []string{"b:1", "b%:1"}},
		{"a policy", func(q *usage.TopQuery) { q.Policy = "q" }, []string{"b%:1"}},
		{"a user", func(q *usage.TopQuery) { q.User = "v" }, []string{"b:2"}},
		{"a prefix", func(q *usage.TopQuery) { q.Prefix = "b:" }, []string{"b:1", "b:2"}},
		{"a prefix that looks like a pattern", func(q *usage.TopQuery) { q.Prefix = "b%" }, []string{"b%:1"}},
	} {
		var keys []string
		for _, row := range topOf(t, s, c.change) {
			keys = append(keys, row.Key)
		}
		equal(t, c.name, keys, c.want)
	}
}

func usageWriters(t *testing.T, s Store) {
	const workers, rounds = 4, 10
	var counts []usage.Count
	for _, id := range numbered(50) {
		counts = append(counts, usageCount(id.Key, "u", noon, 1, 0, 2))
	}
	concurrently(t, workers, func(int) error {
		for range rounds {
			if err := s.AddUsage(within(t), counts); err != nil {
				return err
			}
		}
		return nil
	})
	top := topOf(t, s, func(q *usage.TopQuery) { q.Max = 100 })
	equal(t, "rows", len(top), len(counts))
	for _, row := range top {
		equal(t, row.Key, row, topRow(row.Key, "u", workers*rounds, 0, 2*workers*rounds, workers*rounds))
	}
}

func usageRollup(t *testing.T, s Store) {
	for m := range int64(150) { // two hours and a half
		addUsage(t, s, usageCount("a", "u", noon+m*minute, m, 1, 2))
	}
	before := topOf(t, s, func(*usage.TopQuery) {})
	rollup := func(at int64, want int) {
		t.Helper()
		n, err := s.RollupUsage(within(t), time.UnixMilli(at), 50)
		if err != nil {
			t.Fatalf("rollup: %v", err)
		}
		equal(t, "rolled up", n, want)
		equal(t, "top after it", topOf(t, s, func(*usage.TopQuery) {}), before)
	}
	rollup(noon+2*hour+10*minute, 50)
	rollup(noon+2*hour+10*minute, 50)
	rollup(noon+2*hour+10*minute, 20)
	rollup(noon+2*hour+10*minute, 0)
	// Usage that was rolled up is selected by the hour, other usage by the minute.
	for _, c := range []struct{ since, until, want int64 }{
		{0, 1, 60 * 59 / 2}, {30, 45, 60 * 59 / 2}, {59, 61, 120 * 119 / 2}, {60, 120, 120*119/2 - 60*59/2}, {135, 140, 135 + 136 + 137 + 138 + 139},
	} {
		top := topOf(t, s, func(q *usage.TopQuery) { q.Since, q.Until = noon+c.since*minute, noon+c.until*minute })
		if len(top) != 1 || top[0].Allowed != c.want {
			t.Errorf("from minute %d to %d: %+v, want %d allowed", c.since, c.until, top, c.want)
		}
	}
	// A late count is added to its hour.
	addUsage(t, s, usageCount("a", "u", noon, 1, 0, 2))
	before[0].Allowed, before[0].Cost = before[0].Allowed+1, before[0].Cost+2
	rollup(noon+hour, 1)
	n, err := s.PruneUsage(within(t), time.UnixMilli(noon+2*hour), 1000)
	if n != 2 || err != nil {
		t.Errorf("prune: %d, %v; want the two hours", n, err)
	}
}

func usagePrune(t *testing.T, s Store) {
	for m := range int64(5) {
		addUsage(t, s, usageCount("a", "u", noon+m*minute, 1, 0, 1))
	}
	for _, want := range []int{3, 1, 0} {
		n, err := s.PruneUsage(within(t), time.UnixMilli(noon+4*minute), 3)
		if n != want || err != nil {
			t.Errorf("prune: %d, %v; want %d", n, err, want)
		}
	}
	equal(t, "left", topOf(t, s, func(*usage.TopQuery) {}), []usage.Top{topRow("a", "u", 1, 0, 1, 1)})
}

// logOf writes requests: 100 of one endpoint that take 1 to 100 ms, and some that fail.
func logOf(t *testing.T, s usage.Store) {
	t.Helper()
	var all []usage.Request
	for i := range int64(100) {
		all = append(all, usage.Request{At: noon + i, Key: "k:1", User: "u", Endpoint: "/a", Method: "GET", Status: 200, Millis: (i*37)%100 + 1})
	}
	for i := range int64(3) {
		all = append(all, usage.Request{At: noon + i, Key: "k:2", User: "v", Endpoint: "/b", Method: "POST", Status: 500 + i/2, Millis: 500})
	}
	all = append(all, usage.Request{At: noon + hour, Key: "x", User: "", Endpoint: "/a", Method: "GET", Status: 503, Millis: 9000})
	if err := s.AddRequests(within(t), all); err != nil {
		t.Fatalf("add requests: %v", err)
	}
}

func requestLog(t *testing.T, s Store) {
	logOf(t, s)
	for _, q := range []usage.LogQuery{{Since: noon, Until: noon + hour, Max: 10}, {Until: future, Prefix: "k:", Max: 10}} {
		traffic, err := s.Traffic(within(t), q)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "traffic", traffic, []usage.Traffic{{Key: "k:1", User: "u", Requests: 100}, {Key: "k:2", User: "v", Requests: 3, Errors: 3}})
		slowest, err := s.SlowestEndpoints(within(t), q)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "slowest", slowest, []usage.Endpoint{
			{Endpoint: "/b", Method: "POST", Requests: 3, Mean: 500, P95: 500, Max: 500},
			{Endpoint: "/a", Method: "GET", Requests: 100, Mean: 50.5, P95: 95, Max: 100},
		})
		failures, err := s.EndpointErrors(within(t), q)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "errors", failures, []usage.Failure{
			{Endpoint: "/b", Method: "POST", Status: 500, Requests: 2}, {Endpoint: "/b", Method: "POST", Status: 501, Requests: 1},
		})
	}
	traffic, err := s.Traffic(within(t), usage.LogQuery{Until: future, Max: 1})
	if err != nil || len(traffic) != 1 {
		t.Errorf("one row of traffic: %v, %v", traffic, err)
	}
}

func requestPrune(t *testing.T, s Store) {
	logOf(t, s)
	for _, want := range []int{60, 43, 0} {
		n, err := s.PruneRequests(within(t), time.UnixMilli(noon+hour), 60)
		if n != want || err != nil {
			t.Errorf("prune: %d, %v; want %d", n, err, want)
		}
	}
	traffic, err := s.Traffic(within(t), usage.LogQuery{Until: future, Max: 10})
	if err != nil || len(traffic) != 1 || traffic[0].Key != "x" {
		t.Errorf("left: %v, %v", traffic, err)
	}
}
