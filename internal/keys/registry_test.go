package keys_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// clock is a time that the test sets.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time       { return time.UnixMilli(c.ms.Load()) }
func (c *clock) pass(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// counted is a real store that counts lookups, and can block them or fail.
type counted struct {
	*sqlite.Store
	lookups atomic.Int64
	entered chan struct{}
	hold    chan struct{}
	fail    atomic.Bool
	blind   atomic.Bool // no change has another revision
}

// block makes every lookup wait from now on, until hold is closed.
func (c *counted) block() { c.entered, c.hold = make(chan struct{}, 200), make(chan struct{}) }

func (c *counted) Key(ctx context.Context, id string) (keys.Stored, bool, error) {
	c.lookups.Add(1)
	k, found, err := c.Store.Key(ctx, id)
	if c.hold != nil {
		c.entered <- struct{}{}
		select {
		case <-c.hold:
		case <-ctx.Done():
			return keys.Stored{}, false, ctx.Err()
		}
	}
	if c.fail.Load() {
		return keys.Stored{}, false, errors.New("the store is away")
	}
	if c.blind.Load() {
		k.Revision = 0
	}
	return k, found, err
}

func open(t *testing.T) (*counted, *clock) {
	t.Helper()
	s := eachstore.SQLite(t, nil)
	c := new(clock)
	c.ms.Store(1_700_000_000_000)
	return &counted{Store: s}, c
}

func registry(t *testing.T, cfg keys.Config) *keys.Registry {
	t.Helper()
	r, err := keys.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func create(t *testing.T, r *keys.Registry, k keys.Key) (string, keys.Key) {
	t.Helper()
	text, k, err := r.Create(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	return text, k
}

func wantCode(t *testing.T, r *keys.Registry, text string, want keys.Code) *keys.Key {
	t.Helper()
	k, code, err := r.Verify(t.Context(), text)
	if err != nil || code != want {
		t.Errorf("code %q, %v; want %q", code, err, want)
	}
	return k
}

func TestVerify(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now, Prefix: "acme"})
	text, k := create(t, r, keys.Key{Name: "ci", User: "7", Tier: "pro", Attributes: map[string]string{"a": "b"},
		ExpiresAt: c.now().Add(time.Hour).UnixMilli()})
	if !strings.HasPrefix(text, "acme_"+k.ID+"_") || k.CreatedAt != c.ms.Load() {
		t.Errorf("key %s of %+v", text, k)
	}
	got := wantCode(t, r, text, keys.Valid)
	if got.User != "7" || got.Tier != "pro" || got.Attributes["a"] != "b" || got.ID != k.ID {
		t.Errorf("key %+v", got)
	}
	wantCode(t, r, text[:len(text)-1]+"!", keys.Unknown)
	wantCode(t, r, "", keys.Unknown)

	// A forger would send the id of one key with the secret of another and a correct checksum.
	other, _ := create(t, r, keys.Key{User: "8"})
	forged := keys.Forge("acme", k.ID, other)
	if k := wantCode(t, r, forged, keys.Unknown); k != nil {
		t.Errorf("a wrong secret tells of the key: %+v", k)
	}

	c.pass(time.Hour - time.Millisecond)
	wantCode(t, r, text, keys.Valid)
	c.pass(time.Millisecond)
	if k := wantCode(t, r, text, keys.Expired); k.User != "7" {
		t.Errorf("expired key %+v", k)
	}
	if got, err := r.Expire(t.Context(), k.ID, 0); err != nil || got.ID != k.ID || got.ExpiresAt != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantCode(t, r, text, keys.Valid)
	if got, err := r.Revoke(t.Context(), k.ID); err != nil || got.ID != k.ID || got.RevokedAt != c.ms.Load() {
		t.Fatalf("%+v, %v", got, err)
	}
	wantCode(t, r, text, keys.Inactive)
	if _, err := r.Expire(t.Context(), k.ID, 1); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r, text, keys.Inactive) // for good, whatever else is wrong with it
	text, _ = create(t, r, keys.Key{User: "9", RevokedAt: 1})
	wantCode(t, r, text, keys.Valid) // a new key is not revoked
	for _, err := range []error{second(r.Revoke(t.Context(), "nobody00")), second(r.Expire(t.Context(), "nobody00", 1))} {
		if !errors.Is(err, keys.ErrUnknown) {
			t.Error(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestSecretIsNotStored looks for it in what is stored and returned.
func TestSecretIsNotStored(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	text, k := create(t, r, keys.Key{User: "7"})
	page, _, err := r.List(t.Context(), keys.Filter{Max: 1})
	if err != nil || len(page) != 1 || page[0].ID != k.ID {
		t.Fatalf("list: %+v, %v", page, err)
	}
	s.fail.Store(true)
	c.pass(time.Hour)
	_, _, err = r.Verify(t.Context(), text)
	if err == nil || strings.Contains(err.Error(), text[13:]) {
		t.Errorf("error: %v", err)
	}
}

// TestLookupsAreCached counts lookups: one for a key and one for an id that does not exist, for 900 ms.
func TestLookupsAreCached(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	text, k := create(t, r, keys.Key{User: "7"})
	absent := keys.Forge("lim", "AAAAAAAA", text)
	for range 3 {
		wantCode(t, r, text, keys.Valid)
		wantCode(t, r, absent, keys.Unknown)
		wantCode(t, r, text+"x", keys.Unknown) // never looked up
	}
	if n := s.lookups.Load(); n != 2 {
		t.Errorf("%d look-ups, want 2", n)
	}
	c.pass(900 * time.Millisecond)
	wantCode(t, r, text, keys.Valid)
	wantCode(t, r, absent, keys.Unknown)
	if n := s.lookups.Load(); n != 4 {
		t.Errorf("%d look-ups, want 4", n)
	}
	r.Forget(k.ID)
	r.Forget("AAAAAAAA")
	wantCode(t, r, text, keys.Valid)
	wantCode(t, r, absent, keys.Unknown)
	if n := s.lookups.Load(); n != 6 {
		t.Errorf("%d look-ups, want 6", n)
	}
}

// TestUnknownKeysDoNotEvictKnownOnes sends more unknown ids than are cached, of which only the last ones stay.
func TestUnknownKeysDoNotEvictKnownOnes(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now, CacheSize: 10})
	text, _ := create(t, r, keys.Key{User: "7"})
	wantCode(t, r, text, keys.Valid)
	for i := range 50 {
		wantCode(t, r, keys.Forge("lim", "AAAAAA"+string(rune('a'+i/10))+string(rune('0'+i%10)), text), keys.Unknown)
	}
	if n := len(keys.CachedIDs(r)); n != 1+10 {
		t.Errorf("%d ids are cached", n)
	}
	before := s.lookups.Load()
	wantCode(t, r, text, keys.Valid)
	if s.lookups.Load() != before {
		t.Error("the key was forgotten")
	}
}

// TestRevocationReachesOthers has two registries over one store. A revocation reaches the other one at once by the broadcast, and
// without the broadcast within a second.
func TestRevocationReachesOthers(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	other := registry(t, keys.Config{Store: s, Now: c.now})
	lost := false
	r := registry(t, keys.Config{Store: s, Now: c.now, Broadcast: func(id string) {
		if !lost {
			other.Forget(id)
		}
	}})
	for _, lost = range []bool{false, true} {
		text, k := create(t, r, keys.Key{User: "7"})
		wantCode(t, other, text, keys.Valid)
		if _, err := r.Revoke(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		wantCode(t, r, text, keys.Inactive)
		if lost {
			wantCode(t, other, text, keys.Valid)
			c.pass(time.Second)
		}
		wantCode(t, other, text, keys.Inactive)
	}
}

// TestLookupOvertakenByRevocationIsNotCached blocks a lookup that has read the key until the key
// is revoked. A caller after the revocation gets a new lookup, whether or not the first one has
// ended.
func TestLookupOvertakenByRevocationIsNotCached(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, c := open(t)
			r := registry(t, keys.Config{Store: s, Now: c.now})
			text, k := create(t, r, keys.Key{User: "7"})
			s.block()
			var before, after keys.Code
			var done sync.WaitGroup
			done.Go(func() { _, before, _ = r.Verify(t.Context(), text) })
			synctest.Wait()
			if _, err := r.Revoke(t.Context(), k.ID); err != nil {
				t.Fatal(err)
			}
			if ended {
				close(s.hold)
				done.Wait()
			}
			done.Go(func() { _, after, _ = r.Verify(t.Context(), text) })
			synctest.Wait()
			if !ended {
				close(s.hold)
			}
			done.Wait()
			if before != keys.Valid || after != keys.Inactive {
				t.Errorf("asked before the revocation: %q; after it: %q; the first look-up had ended: %t", before, after, ended)
			}
		})
	}
}

// TestLookupsAreShared has a hundred callers while the first lookup is blocked.
func TestLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		text, _ := create(t, r, keys.Key{User: "7"})
		s.block()
		first, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { _, _, err := r.Verify(first, text); gaveUp <- err }()
		<-s.entered
		cancel() // the first caller gives up; the others get their answer nevertheless
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("gave up: %v", err)
		}
		codes := make(chan keys.Code, 100)
		for range 100 {
			go func() { _, code, _ := r.Verify(t.Context(), text); codes <- code }()
		}
		time.Sleep(time.Second) // all of them wait; that the first one has gone says nothing about the store
		close(s.hold)
		for range 100 {
			if code := <-codes; code != keys.Valid {
				t.Errorf("code %q", code)
			}
		}
		if n := s.lookups.Load(); n != 1 {
			t.Errorf("%d look-ups", n)
		}
	})
}

// TestLateCallerDoesNotRepeatLookup has callers arrive as the shared lookup ends. One that found
// nothing cached, and comes too late for that lookup, must not begin another.
func TestLateCallerDoesNotRepeatLookup(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	text, k := create(t, r, keys.Key{User: "7"})
	for round := range int64(200) {
		var done sync.WaitGroup
		for range 16 {
			done.Go(func() {
				if _, code, err := r.Verify(t.Context(), text); code != keys.Valid || err != nil {
					t.Errorf("code %q, %v", code, err)
				}
			})
		}
		done.Wait()
		if n := s.lookups.Load(); n != round+1 {
			t.Fatalf("%d look-ups in %d rounds", n, round+1)
		}
		r.Forget(k.ID)
	}
}

// TestDefaults: keys expire by the clock of the machine, and an answer is cached for 900 ms.
func TestDefaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t)
		r, other := registry(t, keys.Config{Store: s}), registry(t, keys.Config{Store: s})
		text, k := create(t, r, keys.Key{User: "7", ExpiresAt: time.Now().Add(time.Minute).UnixMilli()})
		wantCode(t, r, text, keys.Valid)
		time.Sleep(time.Minute)
		wantCode(t, r, text, keys.Expired)
		if _, err := other.Revoke(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(900*time.Millisecond - 1)
		wantCode(t, r, text, keys.Expired)
		time.Sleep(time.Nanosecond)
		wantCode(t, r, text, keys.Inactive)
	})
}

func TestListSaysWhetherMoreFollow(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	for range 3 {
		create(t, r, keys.Key{User: "7"})
	}
	for max, want := range map[int]bool{2: true, 3: false, 4: false} {
		page, more, err := r.List(t.Context(), keys.Filter{Max: max})
		if err != nil || len(page) != min(max, 3) || more != want {
			t.Errorf("%d of 3 keys: %d, more follow: %v, %v", max, len(page), more, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if page, more, err := r.List(gone, keys.Filter{Max: 2}); page != nil || more || !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v, %v, %v", page, more, err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	for want, cfg := range map[string]keys.Config{"Store": {}, "lower case": {Store: s, Prefix: "A B"}} {
		if _, err := keys.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
