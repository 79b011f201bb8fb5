package keys_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/keys"
)

// TestOneReadConfirmsAllKeys: as long as no key changes, many keys cost the store one read in each second in which they are
// verified. After a change each is looked up again.
func TestOneReadConfirmsAllKeys(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r, other := registry(t, keys.Config{Store: s, Now: c.now}), registry(t, keys.Config{Store: s.Store, Now: c.now})
	var texts, ids []string
	for range 10 {
		text, k := create(t, other, keys.Key{User: "7"})
		texts, ids = append(texts, text), append(ids, k.ID)
	}
	revoked := -1
	for i, reads := range []int64{10, 1, 1, 10, 1} {
		if i == 3 {
			revoked = 4
			if _, err := other.Revoke(t.Context(), ids[revoked]); err != nil {
				t.Fatal(err)
			}
		}
		before := s.lookups.Load()
		for i, text := range texts {
			want := keys.Valid
			if i == revoked {
				want = keys.Inactive
			}
			wantCode(t, r, text, want)
		}
		if n := s.lookups.Load() - before; n != reads {
			t.Errorf("round %d: %d look-ups, want %d", i, n, reads)
		}
		c.pass(time.Second)
	}
}

// TestKeysAreConfirmedBeforeAnybodyWaits: while keys are verified, the revision is read again when it is 450 ms old.
func TestKeysAreConfirmedBeforeAnybodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t)
		r := registry(t, keys.Config{Store: s})
		text, _ := create(t, r, keys.Key{User: "7"})
		wantCode(t, r, text, keys.Valid)
		verify := func(after time.Duration, reads int64) {
			t.Helper()
			time.Sleep(after)
			for range 3 {
				if _, code, ok := r.VerifyCached(text); code != keys.Valid || !ok {
					t.Errorf("code %q, cached: %t", code, ok)
				}
			}
			synctest.Wait()
			if n := s.lookups.Load(); n != reads {
				t.Errorf("%d reads, want %d", n, reads)
			}
		}
		verify(450*time.Millisecond-1, 1)
		verify(1, 2)
		verify(450*time.Millisecond-1, 2)
		s.fail.Store(true)
		verify(1, 3)
		verify(450*time.Millisecond-1, 3) // a read that failed is not repeated ahead
		time.Sleep(time.Nanosecond)
		if _, code, ok := r.VerifyCached(text); code == keys.Valid || ok {
			t.Errorf("900 ms after the last confirmation: code %q, cached: %t", code, ok)
		}
		s.fail.Store(false)
		wantCode(t, r, text, keys.Valid)
		verify(0, 4)
	})
}

// remove deletes a key, which another registry has let expire, from the store.
func remove(t *testing.T, s *counted, other *keys.Registry, id string) {
	t.Helper()
	if _, err := other.Expire(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := s.PruneKeys(t.Context(), time.UnixMilli(2), 1); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

// TestARemovedKeyIsForgotten by whoever finds that it is not stored any more.
func TestARemovedKeyIsForgotten(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(t *testing.T, r *keys.Registry, text, id string){
		"a change of it": func(t *testing.T, r *keys.Registry, _, id string) {
			if _, err := r.Revoke(t.Context(), id); !errors.Is(err, keys.ErrUnknown) {
				t.Errorf("error %v", err)
			}
		},
		"the read that confirms it": func(t *testing.T, r *keys.Registry, text, _ string) {
			time.Sleep(450 * time.Millisecond)
			wantCode(t, r, text, keys.Valid)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, _ := open(t)
				r, other := registry(t, keys.Config{Store: s}), registry(t, keys.Config{Store: s.Store})
				text, k := create(t, r, keys.Key{User: "7"})
				wantCode(t, r, text, keys.Valid)
				remove(t, s, other, k.ID)
				find(t, r, text, k.ID)
				wantCode(t, r, text, keys.Unknown)
			})
		})
	}
}

// TestAKeyIsReadAgainAfterAMinute, whatever the revision says.
func TestAKeyIsReadAgainAfterAMinute(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	s.blind.Store(true)
	r, other := registry(t, keys.Config{Store: s, Now: c.now}), registry(t, keys.Config{Store: s.Store, Now: c.now})
	text, k := create(t, r, keys.Key{User: "7"})
	another, _ := create(t, r, keys.Key{User: "8"})
	wantCode(t, r, text, keys.Valid)
	if _, err := other.Revoke(t.Context(), k.ID); err != nil {
		t.Fatal(err)
	}
	c.pass(time.Minute - time.Millisecond)
	wantCode(t, r, another, keys.Valid)
	wantCode(t, r, text, keys.Valid)
	c.pass(time.Millisecond)
	wantCode(t, r, text, keys.Inactive)
}

// TestAnOlderReadDoesNotHideAChange: a read that began before a revocation was seen, and ends after that.
func TestAnOlderReadDoesNotHideAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r, other := registry(t, keys.Config{Store: s, Now: c.now}), registry(t, keys.Config{Store: s.Store, Now: c.now})
		text, k := create(t, other, keys.Key{User: "7"})
		slow, _ := create(t, other, keys.Key{User: "8"})
		wantCode(t, r, text, keys.Valid)
		s.block()
		done := make(chan keys.Code)
		go func() { _, code, _ := r.Verify(t.Context(), slow); done <- code }()
		<-s.entered
		synctest.Wait()
		if _, err := other.Revoke(t.Context(), k.ID); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Millisecond)
		hold := s.hold
		s.hold = nil
		third, _ := create(t, other, keys.Key{User: "9"})
		wantCode(t, r, third, keys.Valid) // with the new revision
		close(hold)
		if code := <-done; code != keys.Valid {
			t.Errorf("code %q", code)
		}
		wantCode(t, r, text, keys.Inactive)
	})
}

// TestHolds: a key that was verified is the same until it ends or changes, however often it is read.
func TestHolds(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r, other := registry(t, keys.Config{Store: s, Now: c.now}), registry(t, keys.Config{Store: s.Store, Now: c.now})
	text, created := create(t, r, keys.Key{User: "7", Attributes: map[string]string{"plan": "pro"}, ExpiresAt: c.now().Add(time.Hour).UnixMilli()})
	k := wantCode(t, r, text, keys.Valid)
	holds := func(want bool) {
		t.Helper()
		if r.Holds(k) != want {
			t.Errorf("holds: %t", !want)
		}
	}
	holds(true)
	c.pass(time.Second)
	holds(false) // nothing is known
	wantCode(t, r, text, keys.Valid)
	holds(true)
	another, gone := create(t, other, keys.Key{User: "8"})
	if _, err := other.Revoke(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	c.pass(time.Second)
	wantCode(t, r, another, keys.Inactive)
	holds(false) // it was read before the last change of some key
	wantCode(t, r, text, keys.Valid)
	holds(true)
	if _, err := r.Expire(t.Context(), created.ID, c.now().Add(time.Hour).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	changed := wantCode(t, r, text, keys.Valid)
	holds(false) // it is another by now, though this one has not expired either
	k = changed
	holds(true)
	c.pass(time.Hour)
	wantCode(t, r, another, keys.Inactive)
	holds(false) // it has expired
	if _, err := r.Revoke(t.Context(), created.ID); err != nil {
		t.Fatal(err)
	}
	holds(false)
}
