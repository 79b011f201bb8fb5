package bus

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// askedEngine keeps the last request, and never answers.
type askedEngine struct {
	Decider
	last *engine.Request
}

func (e *askedEngine) Submit(r *engine.Request) error { e.last = r; return nil }

// verifier is a service that can verify, and nothing else.
func verifier(t *testing.T, r *keys.Registry, table *overrides.Table, policies Policies) *Service {
	t.Helper()
	s := &Service{decoder: testDecoder(t), verifies: newRequestCache(), cfg: ServiceConfig{Keys: r, Engine: new(askedEngine)}}
	s.decoder.policies, s.decoder.overrides = policies, table
	s.calls.New = s.newCall
	return s
}

// TestVerifiesThatCameBeforeAskTheSame: whatever changes meanwhile, a verify asks for the same limits, and begins the same
// answer, as one that nothing is cached for.
func TestVerifiesThatCameBeforeAskTheSame(t *testing.T) {
	t.Parallel()
	other := keeperOf(t, strings.ReplaceAll(cachedPolicies, "limit: 7,", "limit: 8,"))
	synctest.Test(t, func(t *testing.T) {
		store := eachstore.SQLite(t, nil)
		table, err := overrides.New(overrides.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		here, elsewhere := keyRegistry(t, store), keyRegistry(t, store)
		var policies swappablePolicies
		policies.Store(keeperOf(t, cachedPolicies))
		s := verifier(t, here, table, &policies)
		random := rand.New(rand.NewPCG(3, 4))
		bodies, ids := make([]string, 0, 8), make([]string, 2)
		for i := range ids {
			text, k, err := here.Create(t.Context(), keys.Key{User: fmt.Sprint(i + 7), Tier: []string{"", "PRO"}[i], Name: "n"})
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = k.ID
			for _, rest := range []string{`,"policy":"named"`, `,"attributes":{"route":"chat"},"cost":2`, `,"policy":"named","id":"x"`, `,"policy":"unknown"`} {
				bodies = append(bodies, fmt.Sprintf(`{"apiKey":%q%s}`, text, rest))
			}
		}
		hits := 0
		for range 2000 {
			switch random.IntN(12) {
			case 0:
				before := policies.Load()
				policies.Store(other)
				other = before
			case 1:
				changeOverride(t, table, overrides.ID{Policy: "named", Name: "l", Subject: "named:7"}, random)
			case 2:
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
			case 3:
				by := []*keys.Registry{here, elsewhere}[random.IntN(2)]
				at := []int64{0, 0, time.Now().UnixMilli() + random.Int64N(3000)}[random.IntN(3)]
				if _, err := by.Expire(t.Context(), ids[random.IntN(2)], at); err != nil {
					t.Fatal(err)
				}
			}
			body := []byte(bodies[random.IntN(len(bodies))])
			for range 1 + random.IntN(3) {
				hits += verifyTwice(t, s, body)
			}
		}
		if hits < 1000 {
			t.Errorf("only %d were cached", hits)
		}
	})
}

func keyRegistry(t *testing.T, store keys.Store) *keys.Registry {
	t.Helper()
	r, err := keys.New(keys.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// verifyTwice verifies as the inline handler does and as the endpoint does, and returns how often it was cached.
func verifyTwice(t *testing.T, s *Service, body []byte) (hits int) {
	t.Helper()
	q, err := s.decodeVerify(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.cfg.Keys.Verify(t.Context(), q.APIKey); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // until the keys are confirmed
	k, code, err := s.cfg.Keys.Verify(t.Context(), q.APIKey)
	if err != nil {
		t.Fatal(err)
	}
	asked := s.cfg.Engine.(*askedEngine)
	asked.last = nil
	got, want := s.acquireCall(nil, nil), s.acquireCall(nil, nil)
	if code != keys.Valid {
		return 0 // there is nothing to ask
	}
	gotErr := got.takeVerify(body, nil)
	_, _, wantErr := want.forKey(q, k)
	if !reflect.DeepEqual(gotErr, wantErr) {
		t.Fatalf("%s: %v, want %v", body, gotErr, wantErr)
	}
	if wantErr != nil {
		return 0
	}
	for i := range asked.last.Limits {
		if asked.last.Limits[i].Ref != nil {
			hits, asked.last.Limits[i].Ref = 1, nil
		}
	}
	asked.last.Done, want.Done = nil, nil
	if !reflect.DeepEqual(asked.last, &want.Request) || !bytes.Equal(got.head, want.head) {
		t.Fatalf("%s\n got  %s %+v\n want %s %+v", body, got.head, asked.last, want.head, want.Request)
	}
	return hits
}

// TestVerifiesAreKeptWithoutTheirKeys: what is kept of a request is its SHA-256.
func TestVerifiesAreKeptWithoutTheirKeys(t *testing.T) {
	t.Parallel()
	r := keyRegistry(t, eachstore.SQLite(t, nil))
	s := verifier(t, r, nil, keeperOf(t, cachedPolicies))
	text, _, err := r.Create(t.Context(), keys.Key{User: "7"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, code, err := r.Verify(t.Context(), text); code != keys.Valid || err != nil {
			t.Fatal(code, err)
		}
		if err := s.acquireCall(nil, nil).takeVerify(fmt.Appendf(nil, `{"apiKey":%q,"policy":"named"}`, text), nil); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	for i := range s.verifies.sets {
		for j := range s.verifies.sets[i].entries {
			e := s.verifies.sets[i].entries[j].Load()
			if e == nil {
				continue
			}
			kept++
			if len(e.body) != 32 || strings.Contains(fmt.Sprintf("%s %s %+v", e.body, e.verified.head, e.limits), text[len("lim_AAAAAAAA"):]) {
				t.Errorf("%q, %s, %+v", e.body, e.verified.head, e.limits)
			}
		}
	}
	if kept != 1 {
		t.Errorf("%d are kept", kept)
	}
}

// TestVerifyIsAnsweredWhereItIsRead, apart from what cannot be read. The statistics have all of it.
func TestVerifyIsAnsweredWhereItIsRead(t *testing.T) {
	t.Parallel()
	w, nc := oneWorker(t, &fakeEngine{submit: allowing})
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	first := verify(t, nc, `{"apiKey":%q}`, key) // looked up
	if !strings.HasPrefix(first, `{"valid":true,`) {
		t.Fatal(first)
	}
	for range 3 {
		if got := verify(t, nc, `{"apiKey":%q}`, key); got != first {
			t.Errorf("got %s, first %s", got, first)
		}
	}
	for i, want := range []string{`{"valid":false,"code":"unknown"}`, `{"error":{"code":"unknown_policy"`, `{"error":{"code":"invalid_cost"`} {
		body := []string{fmt.Sprintf(`{"apiKey":%q}`, key[1:]), fmt.Sprintf(`{"apiKey":%q,"policy":"nobody's"}`, key), `{"apiKey":"","cost":0}`}[i]
		if got := verify(t, nc, "%s", body); !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	stats := w.svc.current.inlineStats[limits.SubjectVerify]
	if n, failed := stats.requests.Load(), stats.errors.Load(); n != 6 || failed != 1 {
		t.Errorf("%d were taken where they are read, want 6, and %d failed, want 1", n, failed)
	}
	for _, e := range w.svc.current.Stats().Endpoints {
		if e.Subject == limits.SubjectVerify && (e.NumRequests != 7 || e.NumErrors != 2) {
			t.Errorf("the statistics have %d requests and %d errors, want 7 and 2", e.NumRequests, e.NumErrors)
		}
	}
	waitFor(t, "no request is pending", func() bool { return w.svc.pending.Load() == 0 })
}

// TestVerifyFailsAlikeWhereItIsRead: what the engine refuses is answered, and counted.
func TestVerifyFailsAlikeWhereItIsRead(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	w, nc := oneWorker(t, &fakeEngine{submit: func(r *engine.Request) error {
		if refuses.Load() {
			return engine.ErrOverloaded
		}
		return allowing(r)
	}})
	key := createKey(t, nc, `{"user":"7"}`).APIKey
	verify(t, nc, `{"apiKey":%q}`, key)
	refuses.Store(true)
	if got := verify(t, nc, `{"apiKey":%q}`, key); !strings.Contains(got, `{"error":{"code":"overloaded"`) {
		t.Error(got)
	}
	if n := w.svc.current.inlineStats[limits.SubjectVerify].errors.Load(); n != 1 {
		t.Errorf("%d errors", n)
	}
	waitFor(t, "no request is pending", func() bool { return w.svc.pending.Load() == 0 })
}
