package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

func BenchmarkUpdate100(b *testing.B) { storetest.BenchmarkUpdate(b, open(b, Config{}), 100) }

func BenchmarkUpdate1(b *testing.B) { storetest.BenchmarkUpdate(b, open(b, Config{}), 1) }

// BenchmarkOptimistic64 writes batches of 64 of 10,000 cached counters in one round trip.
func BenchmarkOptimistic64(b *testing.B) { benchmarkBatches(b, 64, false) }

// BenchmarkInTurn64 writes the same batches in turn.
func BenchmarkInTurn64(b *testing.B) { benchmarkBatches(b, 64, true) }

// benchRows is how many counters the table has.
const benchRows = 10_000

// benchmarkBatches reports per written counter: the time, the CPU time of the server's process and
// of this one, and the bytes of write-ahead log.
func benchmarkBatches(b *testing.B, size int, inTurn bool) {
	s := open(b, Config{maxConns: 1})
	batches := randomBatches(b, s, size)
	decide, asked := benchDecision(inTurn)
	pid := backend(b, s)
	run := func(n int) {
		for i := range n {
			s.optimistic.skips = 0
			if inTurn {
				s.optimistic.skips = 1
			}
			if err := s.Update(b.Context(), batches[i%len(batches)], decide); err != nil {
				b.Fatal(err)
			}
		}
	}
	run(2 * len(batches)) // every row has moved, and every page is in memory
	*asked = 0
	b.ReportAllocs()
	b.ResetTimer()
	wal, server, worker := walPosition(b, s), cpuOf(b, pid), ownCPU(b)
	start := time.Now()
	run(b.N)
	elapsed := time.Since(start)
	b.StopTimer()
	if *asked < b.N*9/10 { // on a machine that stalls, some optimistic writes are too late
		b.Fatalf("of %d batches %d were written the way this measures", b.N, *asked)
	}
	perCounter := func(v float64, unit string) { b.ReportMetric(v/float64(b.N)/float64(size), unit) }
	perCounter(elapsed.Seconds()*1e6, "µs/counter")
	perCounter((cpuOf(b, pid)-server).Seconds()*1e6, "server-µs/counter")
	perCounter((ownCPU(b)-worker).Seconds()*1e6, "worker-µs/counter")
	perCounter(walPosition(b, s)-wal, "wal-B/counter")
	b.ReportMetric(tablePages(b, s), "pages")
}

// benchDecision writes states as long as those of a sliding window with a few buckets in use. asked
// counts the decisions that were made in turn, or the optimistic ones.
func benchDecision(inTurn bool) (decide func(engine.Snapshot) engine.Changes, asked *int) {
	state := bytes.Repeat([]byte{7}, 80)
	asked = new(int)
	var changes []engine.CounterChange
	round := uint64(0)
	return func(snap engine.Snapshot) engine.Changes {
		if (snap.Until == 0) == inTurn {
			*asked++
		}
		round++
		binary.LittleEndian.PutUint64(state, round)
		changes = changes[:0]
		for i, old := range snap.States {
			c := engine.CounterChange{Slot: i, State: state, ExpiresAt: 4_000_000_000_000}
			if old == nil {
				c.Spec = []byte(`{"algorithm":"sliding_window","limit":100,"window":"1m"}`)
			}
			changes = append(changes, c)
		}
		return engine.Changes{Counters: changes}
	}, asked
}

// randomBatches stores the counters and returns batches of them, with each counter in the same
// number of batches.
func randomBatches(b *testing.B, s *Store, size int) (batches []engine.Batch) {
	ids := make([]engine.CounterID, benchRows)
	for i := range ids {
		ids[i] = engine.CounterID{Key: fmt.Sprintf("api:user:%06d", i), Name: "1m"}
	}
	decide, _ := benchDecision(true)
	if err := s.Update(b.Context(), engine.Batch{Counters: slices.Clone(ids)}, decide); err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		for chunk := range slices.Chunk(ids, size) {
			if len(chunk) < size {
				continue
			}
			some := slices.SortedFunc(slices.Values(chunk), engine.CounterID.Compare)
			batches = append(batches, engine.Batch{Counters: some})
		}
	}
	return batches
}

func backend(b *testing.B, s *Store) (pid int) {
	b.Helper()
	scan(b, s.pool, "SELECT pg_backend_pid()", &pid)
	return pid
}

func walPosition(b *testing.B, s *Store) (at float64) {
	b.Helper()
	err := s.relay.QueryRow(context.Background(), "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&at)
	if err != nil {
		b.Fatal(err)
	}
	return at
}

func tablePages(b *testing.B, s *Store) (n float64) {
	b.Helper()
	scan(b, s.relay, "SELECT pg_relation_size('counters') / 8192.0", &n)
	return n
}

// cpuOf returns the CPU time of a process, to the nanosecond; zero if the system does not tell.
func cpuOf(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0
	}
	var ns time.Duration
	if _, err := fmt.Fscan(bytes.NewReader(text), &ns); err != nil {
		b.Fatal(err)
	}
	return ns
}
