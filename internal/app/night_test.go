package app

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/usage"
)

// TestReport writes usage of three days, and reads the report about the middle one from the stream.
func TestReport(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s store) {
		nc := testenv.Connect(t, testenv.NATS(t).ClientURL())
		night := time.Date(2026, 3, 30, 2, 3, 0, 0, time.FixedZone("Berlin", 2*3600)) // 00:03 in UTC
		job := reportJob(s, func() time.Time { return night }, func(ctx context.Context, r *limits.Report) error {
			return bus.PublishReport(ctx, nc, bus.Origin{Source: "urn:limits:test", SchemaBase: "http://h/schemas"}, r, night, slog.New(slog.DiscardHandler))
		})
		if note, err := job.Run(t.Context()); err != nil || note != "nothing was decided on 2026-03-29" {
			t.Fatalf("%q, %v", note, err)
		}
		begin := time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC)
		used := func(at time.Time, key string, allowed, denied, cost int64) usage.Count {
			return usage.Count{ID: usage.ID{Key: key, User: "u"}, At: at.UnixMilli(), Allowed: allowed, Denied: denied, Cost: cost}
		}
		err := s.AddUsage(t.Context(), []usage.Count{
			used(begin.Add(-time.Minute), "before", 9, 9, 9),
			used(begin, "first minute", 1, 0, 50), used(begin.Add(time.Hour), "denied", 1, 7, 1),
			used(begin.Add(24*time.Hour-time.Minute), "last minute", 2, 1, 70), used(begin.Add(24*time.Hour), "after", 9, 9, 9),
		})
		if err != nil {
			t.Fatal(err)
		}
		// The second run is after a worker that died before it could store that it was done.
		for range 2 {
			if note, err := job.Run(t.Context()); err != nil || note != "2026-03-29: 3 heaviest keys, 2 most denied" {
				t.Fatalf("%q, %v", note, err)
			}
		}
		e := onlyReport(t, nc)
		r, ok := e.Data.(*limits.Report)
		if !ok || e.ID != "report-2026-03-29" || e.Subject != "2026-03-29" || e.Source != "urn:limits:test" ||
			r.Since != begin.UnixMilli() || r.Until != begin.Add(24*time.Hour).UnixMilli() {
			t.Fatalf("%+v %s", e, e.Raw)
		}
		got, _ := json.Marshal([]any{r.Used, r.Denied})
		const want = `[[{"key":"last minute","user":"u","allowed":2,"denied":1,"cost":70,"peak":3},` +
			`{"key":"first minute","user":"u","allowed":1,"denied":0,"cost":50,"peak":1},` +
			`{"key":"denied","user":"u","allowed":1,"denied":7,"cost":1,"peak":8}],` +
			`[{"key":"denied","user":"u","allowed":1,"denied":7,"cost":1,"peak":8},` +
			`{"key":"last minute","user":"u","allowed":2,"denied":1,"cost":70,"peak":3}]]`
		if string(got) != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}

// TestReportOfDenialsAlone: a day on which nothing was allowed is reported, too.
func TestReportOfDenialsAlone(t *testing.T) {
	t.Parallel()
	night, s := time.Date(2026, 3, 30, 0, 3, 0, 0, time.UTC), eachstore.SQLite(t, nil)
	if err := s.AddUsage(t.Context(), []usage.Count{{ID: usage.ID{Key: "k"}, At: night.Add(-time.Hour).UnixMilli(), Denied: 7}}); err != nil {
		t.Fatal(err)
	}
	var published *limits.Report
	job := reportJob(s, func() time.Time { return night }, func(_ context.Context, r *limits.Report) error { published = r; return nil })
	if note, err := job.Run(t.Context()); err != nil || published == nil || len(published.Denied) != 1 {
		t.Errorf("%q, %v: %+v", note, err, published)
	}
}

// TestReportJustAfterMidnight: a day is reported only when every worker has written its counts of it.
func TestReportJustAfterMidnight(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s store) {
		midnight := time.Date(2026, 3, 30, 0, 0, 0, 0, time.UTC)
		for after, want := range map[time.Duration]string{
			0: "2026-03-28", countsDelay - time.Millisecond: "2026-03-28",
			countsDelay: "2026-03-29", 24 * time.Hour: "2026-03-29",
		} {
			r, err := report(t.Context(), s, midnight.Add(after))
			if err != nil || r.Date != want || r.Until-r.Since != (24*time.Hour).Milliseconds() {
				t.Errorf("%s behind midnight: %+v, %v; want %s", after, r, err, want)
			}
		}
	})
}

// onlyReport returns the only report in the stream.
func onlyReport(t *testing.T, nc *nats.Conn) limits.Event {
	t.Helper()
	js := testenv.JetStream(t, nc)
	stream, err := js.Stream(t.Context(), limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d messages in the stream", n)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), limits.EventReport)
	if err != nil {
		t.Fatal(err)
	}
	e, err := limits.ParseEvent(m.Data)
	if err != nil || m.Header.Get(nats.MsgIdHdr) != e.ID {
		t.Fatalf("%v %v", m.Header, err)
	}
	return e
}

// TestReportFailsUnlessStored: the job is not done before the stream has the report.
func TestReportFailsUnlessStored(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	nc, err := nats.Connect(server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	err = bus.PublishReport(t.Context(), nc, bus.Origin{Source: "urn:x", SchemaBase: "http://h"}, &limits.Report{Date: "2026-03-29"}, time.Now(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "publish report of 2026-03-29") {
		t.Errorf("%v", err)
	}
	failing := func(context.Context, *limits.Report) error { return err }
	if note, failed := reportJob(oneDenied{}, time.Now, failing).Run(t.Context()); failed == nil {
		t.Errorf("the run of a report that was not stored is done: %s", note)
	}
}

// oneDenied is the usage of one key.
type oneDenied struct{}

func (oneDenied) TopUsage(context.Context, usage.TopQuery) ([]usage.Top, error) {
	return make([]usage.Top, 1), nil
}

// TestQuotaCheck runs the job on more than a batch of good counters, then with a stale one.
func TestQuotaCheck(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s store) {
		const good = batchSize + 3
		writeCounters(t, s, good)
		log, metrics := newWatcher(), &seen{}
		r, err := jobs.New(jobs.Config{Jobs: []jobs.Job{quotaCheckJob(s, slog.New(log))}, Store: s, Logger: slog.New(log),
			Replica: "a", Observer: metrics})
		if err != nil {
			t.Fatal(err)
		}
		run, err := r.RunNow(t.Context(), "quota-check")
		if err != nil || run.Outcome != jobs.Done || run.Note != "checked 503 counters, 0 past their window" {
			t.Fatalf("%+v, %v", run, err)
		}
		plantStale(t, s)
		if run, err = r.RunNow(t.Context(), "quota-check"); err != nil || run.Outcome != jobs.Failed ||
			!strings.HasPrefix(run.Error, "quotas that do not read as zero after their reset: 1; the first is calls of k00007: its window ended at ") {
			t.Errorf("%+v, %v", run, err)
		}
		kept, err := s.Runs(t.Context(), jobs.Filter{Job: "quota-check", Max: 1})
		if err != nil || len(kept) != 1 || kept[0].Outcome != jobs.Failed || kept[0].Error != run.Error {
			t.Errorf("history: %+v, %v", kept, err)
		}
		if text := log.String(); !strings.Contains(text, "key:k00007 name:calls policy:search") {
			t.Errorf("log: %s", text)
		}
		if metrics.last != "quota-check failed" {
			t.Errorf("metric: %s", metrics.last)
		}
	})
}

// seen records the last run that was observed.
type seen struct{ last string }

func (*seen) JobMissed(string, string) {}

func (s *seen) JobEnded(job, outcome string, _ time.Duration, _ time.Time) {
	s.last = job + " " + outcome
}

func monthly(t *testing.T, key string) engine.Limit {
	t.Helper()
	month, err := engine.ParseWindow("month")
	if err != nil {
		t.Fatal(err)
	}
	return engine.Limit{CounterID: engine.CounterID{Key: key, Name: engine.PolicyName("search", "calls")}, Policy: "search",
		Algorithm: engine.FixedWindow, Limit: 10, Window: month, Threshold: -1}
}

// writeCounters copies the row that an engine writes for one charge.
func writeCounters(t *testing.T, s store, n int) {
	t.Helper()
	e, err := engine.New(t.Context(), engine.Config{Store: s, NewID: func() string { return "id" }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(t.Context())
	l := monthly(t, "a")
	if got, err := e.Do(t.Context(), &engine.Request{Verb: engine.Consume, Cost: 3, Limits: []engine.Limit{l}}); err != nil || !got.Allowed {
		t.Fatalf("%+v, %v", got, err)
	}
	row := counter(t, s, "a")
	b, c := engine.Batch{}, engine.Changes{}
	for i := range n - 1 {
		b.Counters = append(b.Counters, monthly(t, fmt.Sprintf("k%05d", i)).CounterID)
		c.Counters = append(c.Counters, engine.CounterChange{Slot: i, State: row.State, Spec: row.Spec, ExpiresAt: 1 << 45})
	}
	if err := s.Update(t.Context(), b, func(engine.Snapshot) engine.Changes { return c }); err != nil {
		t.Fatal(err)
	}
}

func counter(t *testing.T, s store, key string) engine.StoredCounter {
	t.Helper()
	all, _, err := s.Counters(t.Context(), key)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// plantStale makes one counter stale: its window begins 40 days earlier, in an earlier month, but its end is unchanged.
func plantStale(t *testing.T, s store) {
	t.Helper()
	row := counter(t, s, "k00007")
	const header, days = 10, 40 * 24 * 60 * 60 * 1000
	state := append([]byte(nil), row.State[:header]...)
	rest := row.State[header:]
	for i := range 8 { // warned, exceeded, denied, since; begin, length, count, last from begin
		v, n := binary.Varint(rest)
		if rest = rest[n:]; i == 4 {
			v -= days
		} else if i == 5 || i == 7 {
			v += days
		}
		state = binary.AppendVarint(state, v)
	}
	err := s.Update(t.Context(), engine.Batch{Counters: []engine.CounterID{row.CounterID}}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Counters: []engine.CounterChange{{State: append(state, rest...), Spec: row.Spec, ExpiresAt: 1 << 45}}}
	})
	if err != nil {
		t.Fatal(err)
	}
}
