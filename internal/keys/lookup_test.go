package keys_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/sqlite"
)

// TestAKeyIsReliedOnFromBeforeTheLookup, because it may be revoked while the answer is on its way.
func TestAKeyIsReliedOnFromBeforeTheLookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		text, _ := create(t, r, keys.Key{User: "7"})
		s.block()
		verified := make(chan keys.Code)
		go func() { _, code, _ := r.Verify(t.Context(), text); verified <- code }()
		<-s.entered
		c.pass(600 * time.Millisecond)
		close(s.hold)
		if code := <-verified; code != keys.Valid {
			t.Errorf("code %q", code)
		}
		s.block() // that the revision is read again does not make it younger, before there is an answer
		if _, _, ok := r.VerifyCached(text); !ok {
			t.Error("it is not cached")
		}
		c.pass(300 * time.Millisecond)
		if _, _, ok := r.VerifyCached(text); ok {
			t.Error("it is cached for longer than 900 ms")
		}
		close(s.hold)
	})
}

// TestMissingIDOvertakenByForgetIsNotCached: the key may exist by then.
func TestMissingIDOvertakenByForgetIsNotCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		text, _ := create(t, r, keys.Key{User: "7"})
		absent := keys.Forge("lim", "AAAAAAAA", text)
		s.block()
		verified := make(chan keys.Code)
		go func() { _, code, _ := r.Verify(t.Context(), absent); verified <- code }()
		<-s.entered
		r.Forget("AAAAAAAA")
		close(s.hold)
		if code := <-verified; code != keys.Unknown {
			t.Errorf("code %q", code)
		}
		if _, _, ok := r.VerifyCached(absent); ok {
			t.Error("it is cached")
		}
	})
}

// TestHangingLookupIsGivenUp, though nobody who waits for it gives up.
func TestHangingLookupIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		text, _ := create(t, r, keys.Key{User: "7"})
		s.block()
		began := time.Now()
		_, _, err := r.Verify(t.Context(), text)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestCallersOfAHangingStoreAreToldSoon after one of them has waited in vain, and wait as long as ever once it answers again.
func TestCallersOfAHangingStoreAreToldSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		text, _ := create(t, r, keys.Key{User: "7"})
		verify := func(text string) (took time.Duration, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, _, err = r.Verify(ctx, text)
			return time.Since(began), err
		}
		s.block()
		for i, want := range []time.Duration{1500 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond} {
			if took, err := verify(text); !errors.Is(err, context.DeadlineExceeded) || took != want {
				t.Errorf("call %d: %v after %s, want %s", i+1, err, took, want)
			}
		}
		// Callers with other keys, any number of them, do not pile up lookups.
		before := s.lookups.Load()
		var all sync.WaitGroup
		for range 150 {
			other, _ := create(t, r, keys.Key{User: "8"})
			all.Go(func() {
				if took, err := verify(other); err == nil || took > 100*time.Millisecond {
					t.Errorf("another key: %v after %s", err, took)
				}
			})
		}
		all.Wait()
		if n := s.lookups.Load() - before; n != 64-1 {
			t.Errorf("%d lookups, besides the first one; want 64 in all", n)
		}
		close(s.hold)
		synctest.Wait()
		if took, err := verify(text); err != nil || took != 0 {
			t.Errorf("when it answers again: %v after %s", err, took)
		}
		c.pass(time.Second) // no longer cached
		s.block()
		if took, err := verify(text); err == nil || took != 1500*time.Millisecond {
			t.Errorf("when it hangs again: %v after %s", err, took)
		}
		time.Sleep(5 * time.Second) // every lookup was given up, so that none is left to be answered
		close(s.hold)
		if took, err := verify(text); err != nil || took != 0 {
			t.Errorf("when it answers at last: %v after %s", err, took)
		}
	})
}

// TestSlowStoreIsAskedForAllKeys, however many are asked for at a time, as long as nobody has waited in vain.
func TestSlowStoreIsAskedForAllKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		r := registry(t, keys.Config{Store: s, Now: c.now})
		s.block()
		var all sync.WaitGroup
		for range 150 {
			text, _ := create(t, r, keys.Key{User: "7"})
			all.Go(func() { wantCode(t, r, text, keys.Valid) })
		}
		time.Sleep(time.Second)
		close(s.hold)
		all.Wait()
	})
}

// TestUnansweredKeyIsNotValid: whoever looks only at the code must not take it for one.
func TestUnansweredKeyIsNotValid(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	text, _ := create(t, r, keys.Key{User: "7"})
	if k, code, ok := r.VerifyCached(text); ok || code == keys.Valid || k != nil {
		t.Errorf("not cached: %+v, code %q, %t", k, code, ok)
	}
	s.fail.Store(true)
	if k, code, err := r.Verify(t.Context(), text); err == nil || code == keys.Valid || k != nil {
		t.Errorf("the store fails: %+v, code %q, %v", k, code, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.block()
	defer close(s.hold)
	if k, code, err := r.Verify(gone, text); err == nil || code == keys.Valid || k != nil {
		t.Errorf("the caller has gone: %+v, code %q, %v", k, code, err)
	}
}

// TestCachesDoNotRetainSecrets: what they keep of a key is not a part of its text in memory.
func TestCachesDoNotRetainSecrets(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	r := registry(t, keys.Config{Store: s, Now: c.now})
	text, k := create(t, r, keys.Key{User: "7"})
	absent := keys.Forge("lim", "AAAAAAAA", text)
	wantCode(t, r, text, keys.Valid)
	wantCode(t, r, absent, keys.Unknown)
	for _, text := range []string{text, absent} {
		for _, id := range keys.CachedIDs(r) {
			begin, at := uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(unsafe.Pointer(unsafe.StringData(id)))
			if begin <= at && at < begin+uintptr(len(text)) {
				t.Errorf("id %s is a part of the text of a key", id)
			}
		}
	}
	if ids := keys.CachedIDs(r); len(ids) != 2 || ids[0] != k.ID {
		t.Errorf("cached: %q", ids)
	}
}

// unsure is a store that makes changes and returns an error, as when the answer to a commit is lost. The first ids of new keys
// exist.
type unsure struct {
	*sqlite.Store
	exist int
}

var errUnsure = errors.New("connection lost")

func (u *unsure) RevokeKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	_, _, _ = u.Store.RevokeKey(ctx, id, at)
	return keys.Key{}, false, errUnsure
}

func (u *unsure) CreateKey(ctx context.Context, k keys.Key) error {
	if u.exist--; u.exist >= 0 {
		return keys.ErrExists
	}
	return u.Store.CreateKey(ctx, k)
}

// TestKeyIsForgottenAfterUncertainRevocation, here and by other workers: it may be revoked.
func TestKeyIsForgottenAfterUncertainRevocation(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	told := ""
	r := registry(t, keys.Config{Store: &unsure{Store: s.Store}, Now: c.now, Broadcast: func(id string) { told = id }})
	text, k := create(t, r, keys.Key{User: "7"})
	wantCode(t, r, text, keys.Valid)
	if _, err := r.Revoke(t.Context(), k.ID); !errors.Is(err, errUnsure) {
		t.Error(err)
	}
	wantCode(t, r, text, keys.Inactive)
	if told != k.ID {
		t.Errorf("other workers were told of %q", told)
	}
}

// TestIDsThatExistAreDrawnAgain, a few times: after that the store must be broken.
func TestIDsThatExistAreDrawnAgain(t *testing.T) {
	t.Parallel()
	s, c := open(t)
	for exist, want := range map[int]error{2: nil, 3: keys.ErrExists} {
		r := registry(t, keys.Config{Store: &unsure{Store: s.Store, exist: exist}, Now: c.now})
		text, _, err := r.Create(t.Context(), keys.Key{User: "7"})
		if !errors.Is(err, want) || (text == "") != (want != nil) {
			t.Errorf("%d ids exist: %q, %v", exist, text, err)
		}
		if want == nil {
			wantCode(t, r, text, keys.Valid)
		}
	}
}
