package httplimit

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
)

// TestKnownKeysAreBounded: the cache of valid keys is bounded in size and in age.
func TestKnownKeysAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c validKeyCache
		digest := func(n int) (d [sha256.Size]byte) {
			binary.BigEndian.PutUint64(d[:], uint64(n))
			return d
		}
		for n := range maxCachedKeys + 100 {
			c.put(digest(n), &limits.VerifyReply{User: "7", Key: new(limits.KeyRef), Decision: &limits.Reply{}})
		}
		last := digest(maxCachedKeys + 99)
		if cached := c.get(last); len(c.byDigest) != maxCachedKeys || cached == nil || cached.User != "7" || !cached.Decision.Degraded {
			t.Errorf("%d keys, the last is %+v", len(c.byDigest), cached)
		}
		c.put(last, &limits.VerifyReply{User: "8", Key: new(limits.KeyRef)})
		if time.Sleep(validKeyTTL); len(c.byDigest) != maxCachedKeys || c.get(last) == nil || c.get(last).User != "8" {
			t.Errorf("%d keys after one came again: %+v", len(c.byDigest), c.get(last))
		}
		if time.Sleep(time.Second); c.get(last) != nil {
			t.Errorf("a key passes after %v", validKeyTTL)
		}
		c.put(last, &limits.VerifyReply{Key: new(limits.KeyRef)})
		if c.remove(last); c.get(last) != nil {
			t.Error("a key that is not valid any more passes")
		}
	})
}
