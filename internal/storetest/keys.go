package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apikeys "github.com/seed503877ad/limits/internal/keys"
)

var keyTests = []test{
	{"a key keeps all its fields", keyFields},
	{"a key id is used once", keyExists},
	{"keys by user and prefix, page by page", keyPages},
	{"a key is revoked once", keyRevoked},
	{"the expiry of a key can be set and removed", keyExpires},
	{"keys that ended are removed in batches", endedKeys},
	{"the revision of the keys changes with each change of a key", keyRevision},
}

func aKey(id, user string) apikeys.Key {
	return apikeys.Key{ID: id, Hash: [32]byte{1, 2, 31: 3}, Name: "n\"ö😀", User: user, Tier: "pro",
		Attributes: map[string]string{"plan": "a'b", "x": ""}, CreatedAt: 1_700_000_000_000, ExpiresAt: 1_800_000_000_000}
}

func createKey(t *testing.T, s apikeys.Store, k apikeys.Key) {
	t.Helper()
	if err := s.CreateKey(within(t), k); err != nil {
		t.Fatalf("create: %v", err)
	}
}

func wantKey(t *testing.T, s apikeys.Store, want apikeys.Key) {
	t.Helper()
	got, found, err := s.Key(within(t), want.ID)
	if err != nil || !found {
		t.Fatalf("key %s: %t, %v", want.ID, found, err)
	}
	equal(t, "key", got.Key, want)
}

func keyFields(t *testing.T, s Store) {
	full, bare := aKey("AAAAAAAA", "u"), apikeys.Key{ID: "aaaaaaaa", User: "u"}
	createKey(t, s, full)
	createKey(t, s, bare)
	wantKey(t, s, full)
	wantKey(t, s, bare)
	for _, id := range []string{"", "AAAAAAAa", "' OR 1=1 --"} {
		if _, found, err := s.Key(within(t), id); found || err != nil {
			t.Errorf("key %q: %t, %v", id, found, err)
		}
	}
}

// endedKeys: what was revoked or expired before a time is removed, in parts, and nothing else.
func endedKeys(t *testing.T, s Store) {
	for id, ends := range map[string]struct{ expires, revoked int64 }{
		"active": {0, 0}, "expires": {20, 0}, "revoked": {30, 20}, "expired1": {19, 0}, "expired2": {1, 0}, "revoked1": {0, 19}, "revoked2": {90, 1},
	} {
		createKey(t, s, apikeys.Key{ID: id, User: "u", ExpiresAt: ends.expires, RevokedAt: ends.revoked})
	}
	for i, want := range []int{3, 1, 0} {
		if n, err := s.PruneKeys(within(t), time.UnixMilli(20), 3); n != want || err != nil {
			t.Errorf("prune %d: %d, %v; want %d", i, n, err, want)
		}
	}
	left, err := s.ListKeys(within(t), apikeys.Filter{Max: 10})
	if err != nil || len(left) != 3 || left[0].ID != "active" || left[1].ID != "expires" || left[2].ID != "revoked" {
		t.Errorf("left: %+v, %v", left, err)
	}
}

func keyExists(t *testing.T, s Store) {
	k := aKey("AAAAAAAA", "u")
	createKey(t, s, k)
	other := k
	other.User = "somebody else"
	if err := s.CreateKey(within(t), other); !errors.Is(err, apikeys.ErrExists) {
		t.Errorf("created again: %v", err)
	}
	wantKey(t, s, k)
}

func keyPages(t *testing.T, s Store) {
	for i, id := range []string{"Aa000000", "B0000000", "Aa000001", "a0000000", "Ab000000", "zzzzzzzz"} {
		createKey(t, s, aKey(id, fmt.Sprintf("user %d", i%2)))
	}
	for _, c := range []struct {
		filter apikeys.Filter
		want   []string
	}{
		{apikeys.Filter{Max: 9}, []string{"Aa000000", "Aa000001", "Ab000000", "B0000000", "a0000000", "zzzzzzzz"}},
		{apikeys.Filter{Max: 2}, []string{"Aa000000", "Aa000001"}},
		{apikeys.Filter{Max: 2, After: "Aa000001"}, []string{"Ab000000", "B0000000"}},
		{apikeys.Filter{Max: 9, Prefix: "A"}, []string{"Aa000000", "Aa000001", "Ab000000"}},
		{apikeys.Filter{Max: 9, Prefix: "Aa", After: "Aa000000"}, []string{"Aa000001"}},
		{apikeys.Filter{Max: 9, Prefix: "zzzzzzzz"}, []string{"zzzzzzzz"}},
		{apikeys.Filter{Max: 9, User: "user 1"}, []string{"B0000000", "a0000000", "zzzzzzzz"}},
		{apikeys.Filter{Max: 9, User: "user 1", Prefix: "a"}, []string{"a0000000"}},
		{apikeys.Filter{Max: 1, User: "user 1", After: "B0000000"}, []string{"a0000000"}},
		{apikeys.Filter{Max: 9, User: "user"}, nil},
		{apikeys.Filter{Max: 9, Prefix: "%"}, nil},
	} {
		page, err := s.ListKeys(within(t), c.filter)
		if err != nil {
			t.Fatalf("list %+v: %v", c.filter, err)
		}
		var ids []string
		for _, k := range page {
			ids = append(ids, k.ID)
		}
		equal(t, fmt.Sprintf("list %+v", c.filter), ids, c.want)
	}
}

func keyRevoked(t *testing.T, s Store) {
	want := aKey("AAAAAAAA", "u")
	createKey(t, s, want)
	createKey(t, s, aKey("BBBBBBBB", "u"))
	want.RevokedAt = 7
	for _, at := range []int64{7, 8} { // the second keeps the time of the first
		got, found, err := s.RevokeKey(within(t), "AAAAAAAA", at)
		if err != nil || !found {
			t.Fatalf("revoke: %t, %v", found, err)
		}
		equal(t, "revoked", got, want)
	}
	wantKey(t, s, want)
	wantKey(t, s, aKey("BBBBBBBB", "u"))
	if _, found, err := s.RevokeKey(within(t), "CCCCCCCC", 7); found || err != nil {
		t.Errorf("revoke nothing: %t, %v", found, err)
	}
}

func keyExpires(t *testing.T, s Store) {
	want := aKey("AAAAAAAA", "u")
	createKey(t, s, want)
	for _, at := range []int64{9, 0} {
		want.ExpiresAt = at
		got, found, err := s.ExpireKey(within(t), "AAAAAAAA", at)
		if err != nil || !found {
			t.Fatalf("expire: %t, %v", found, err)
		}
		equal(t, "expires", got, want)
		wantKey(t, s, want)
	}
	if _, found, err := s.ExpireKey(within(t), "CCCCCCCC", 7); found || err != nil {
		t.Errorf("expire nothing: %t, %v", found, err)
	}
}

// keyRevision: also a key that was not changed is read with the new revision. Neither a new key nor a change of none counts.
func keyRevision(t *testing.T, s Store) {
	createKey(t, s, aKey("AAAAAAAA", "u"))
	revision := func() int64 {
		t.Helper()
		k, found, err := s.Key(within(t), "AAAAAAAA")
		if err != nil || !found {
			t.Fatalf("read: %t, %v", found, err)
		}
		return k.Revision
	}
	seen := map[int64]bool{revision(): true}
	for _, c := range []struct {
		name    string
		changes bool
		change  func() error
	}{
		{"a read", false, func() error { return nil }},
		{"a new key", false, func() error { return s.CreateKey(within(t), aKey("BBBBBBBB", "u")) }},
		{"an expiry", true, func() error { _, _, err := s.ExpireKey(within(t), "BBBBBBBB", 9); return err }},
		{"a revocation", true, func() error { _, _, err := s.RevokeKey(within(t), "BBBBBBBB", 7); return err }},
		{"a removal", true, func() error { _, err := s.PruneKeys(within(t), time.UnixMilli(8), 9); return err }},
	} {
		if err := c.change(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		now := revision()
		if seen[now] == c.changes {
			t.Errorf("revision %d after %s", now, c.name)
		}
		seen[now] = true
	}
}

// KeysChangedByHand executes statements, after each of which the revision of the keys must be another one than ever before.
// Before each there are the keys AAAAAAAA and BBBBBBBB, apart from the first.
func KeysChangedByHand(t *testing.T, s apikeys.Store, execute func(sql string), statements ...string) {
	t.Helper()
	seen := map[int64]string{}
	for _, sql := range statements {
		execute(sql)
		for _, id := range []string{"AAAAAAAA", "BBBBBBBB"} {
			if err := s.CreateKey(within(t), apikeys.Key{ID: id, User: "u"}); err != nil && !errors.Is(err, apikeys.ErrExists) {
				t.Fatal(err)
			}
		}
		k, found, err := s.Key(within(t), "AAAAAAAA")
		if !found || err != nil {
			t.Fatal(found, err)
		}
		if before := seen[k.Revision]; before != "" {
			t.Errorf("after %s the revision is that after %s", sql, before)
		}
		seen[k.Revision] = sql
	}
}
