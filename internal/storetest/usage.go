package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/usage"
)

var usageTests = []test{
	{"counts of a minute add up, and the peak is that of the busiest minute", usageAddsUp},
	{"top selects and orders", usageTop},
	{"equal sums of usage are in order of their ids", usageTies},
	{"sums of usage are capped", usageCap},
	{"writers of the same counts lose none and do not deadlock", usageWriters},
	{"a rollup changes no sum and no peak", usageRollup},
	{"old counts are removed, at most max at once", usagePrune},
	{"traffic, slowest endpoints and errors of the request log", requestLog},
	{"reports of the request log are bounded, the first rows first", requestReports},
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
		{"since the beginning of a minute", func(q *usage.TopQuery) { q.Since = noon + minute }, []string{"c", "b:2"}},
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

// usageTies: equal sums are in order of key, policy and user, whichever came first.
func usageTies(t *testing.T, s Store) {
	other := usageCount("a", "u", noon, 1, 1, 1)
	other.Policy = "q"
	want := []usage.ID{{Key: "a", Policy: "p", User: "u"}, {Key: "a", Policy: "p", User: "v"}, {Key: "a", Policy: "q", User: "u"}, {Key: "b", Policy: "p", User: "u"}}
	addUsage(t, s, usageCount("b", "u", noon, 1, 1, 1))
	addUsage(t, s, other)
	addUsage(t, s, usageCount("a", "v", noon, 1, 1, 1))
	addUsage(t, s, usageCount("a", "u", noon, 1, 1, 1))
	for _, by := range []string{usage.ByDenied, usage.ByUsed, usage.ByAllowed} {
		var ids []usage.ID
		for _, row := range topOf(t, s, func(q *usage.TopQuery) { q.By = by }) {
			ids = append(ids, row.ID)
		}
		equal(t, by, ids, want)
	}
}

// usageCap: sums beyond the largest integer that every reader of JSON represents exactly are cut
// off there.
func usageCap(t *testing.T, s Store) {
	const most = 1<<53 - 1
	addUsage(t, s, usageCount("a", "u", noon, most, 0, most), usageCount("a", "u", noon+minute, most, 0, most))
	addUsage(t, s, usageCount("a", "u", noon+2*minute, 0, most, 0), usageCount("a", "u", noon+3*minute, 0, most, 0))
	equal(t, "top", topOf(t, s, func(*usage.TopQuery) {}), []usage.Top{topRow("a", "u", most, most, most, most)})
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
	top := func(since, until int64) usage.Top { // of some minutes
		t.Helper()
		all := topOf(t, s, func(q *usage.TopQuery) { q.Since, q.Until = noon+since*minute, noon+until*minute })
		if len(all) != 1 {
			t.Fatalf("from minute %d to %d: %+v", since, until, all)
		}
		return all[0]
	}
	rollup(noon+2*hour+10*minute, 50)
	equal(t, "a minute of an hour behind the oldest 50", top(100, 101).Allowed, 100)
	rollup(noon+2*hour+10*minute, 50)
	rollup(noon+2*hour+10*minute, 20)
	rollup(noon+2*hour+10*minute, 0)
	// Usage that was rolled up is selected by the hour, other usage by the minute.
	for _, c := range []struct{ since, until, want int64 }{
		{0, 1, 60 * 59 / 2}, {30, 45, 60 * 59 / 2}, {59, 61, 120 * 119 / 2}, {60, 120, 120*119/2 - 60*59/2}, {135, 140, 135 + 136 + 137 + 138 + 139},
	} {
		equal(t, fmt.Sprintf("allowed from minute %d to %d", c.since, c.until), top(c.since, c.until).Allowed, c.want)
	}
	// A late count is added to its hour.
	addUsage(t, s, usageCount("a", "u", noon, 1, 0, 2))
	before[0].Allowed, before[0].Cost = before[0].Allowed+1, before[0].Cost+2
	rollup(noon+hour, 1)
	equal(t, "peak of that hour", top(0, 60).Peak, 60)
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
		equalReports(t, s, q, []usage.Traffic{{Key: "k:1", User: "u", Requests: 100}, {Key: "k:2", User: "v", Requests: 3, Errors: 3}},
			[]usage.Endpoint{
				{Endpoint: "/b", Method: "POST", Requests: 3, Mean: 500, P95: 500, Max: 500},
				{Endpoint: "/a", Method: "GET", Requests: 100, Mean: 50.5, P95: 95, Max: 100},
			},
			[]usage.Failure{{Endpoint: "/b", Method: "POST", Status: 500, Requests: 2}, {Endpoint: "/b", Method: "POST", Status: 501, Requests: 1}})
	}
	traffic, err := s.Traffic(within(t), usage.LogQuery{Until: future, Max: 1})
	if err != nil || len(traffic) != 1 {
		t.Errorf("one row of traffic: %v, %v", traffic, err)
	}
}

// requestReports has endpoints b, c and a: b is rarely slow and often fails, and the others are
// equal, but some requests to c fail. The keys are called equally often.
func requestReports(t *testing.T, s Store) {
	log := func(endpoint string, status, millis int64, times int) {
		t.Helper()
		r := usage.Request{At: noon, Key: "k:" + endpoint, User: "u", Endpoint: endpoint, Method: "GET", Status: status, Millis: millis}
		if err := s.AddRequests(within(t), slices.Repeat([]usage.Request{r}, times)); err != nil {
			t.Fatal(err)
		}
	}
	log("b", 500, 10, 39)
	log("b", 503, 9000, 1)
	log("c", 200, 50, 30)
	log("c", 503, 50, 10)
	log("a", 200, 50, 40)
	equalReports(t, s, usage.LogQuery{Until: future, Max: 2},
		[]usage.Traffic{{Key: "k:a", User: "u", Requests: 40}, {Key: "k:b", User: "u", Requests: 40, Errors: 40}},
		[]usage.Endpoint{
			{Endpoint: "a", Method: "GET", Requests: 40, Mean: 50, P95: 50, Max: 50},
			{Endpoint: "c", Method: "GET", Requests: 40, Mean: 50, P95: 50, Max: 50},
		},
		[]usage.Failure{{Endpoint: "b", Method: "GET", Status: 500, Requests: 39}, {Endpoint: "c", Method: "GET", Status: 503, Requests: 10}})
}

// equalReports compares all reports of the request log.
func equalReports(t *testing.T, s Store, q usage.LogQuery, traffic []usage.Traffic, slowest []usage.Endpoint, failures []usage.Failure) {
	t.Helper()
	gotTraffic, err := s.Traffic(within(t), q)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "traffic", gotTraffic, traffic)
	gotSlowest, err := s.SlowestEndpoints(within(t), q)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "slowest", gotSlowest, slowest)
	gotFailures, err := s.EndpointErrors(within(t), q)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "errors", gotFailures, failures)
}

func requestPrune(t *testing.T, s Store) {
	logOf(t, s)
	for _, c := range []struct {
		want int
		left []usage.Traffic // from before an hour past noon
	}{
		{60, []usage.Traffic{{Key: "k:1", User: "u", Requests: 43}}}, // with all requests of k:2, which are among the oldest
		{43, nil},
		{0, nil},
	} {
		n, err := s.PruneRequests(within(t), time.UnixMilli(noon+hour), 60)
		if n != c.want || err != nil {
			t.Errorf("prune: %d, %v; want %d", n, err, c.want)
		}
		left, err := s.Traffic(within(t), usage.LogQuery{Until: noon + hour, Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "traffic that is left", left, c.left)
	}
	traffic, err := s.Traffic(within(t), usage.LogQuery{Until: future, Max: 10})
	if err != nil || len(traffic) != 1 || traffic[0].Key != "x" {
		t.Errorf("left: %v, %v", traffic, err)
	}
}
