package httplimit

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
)

// TestKnownKeysAreBounded in number and in age.
func TestKnownKeysAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var k knownKeys
		digest := func(n int) (d [sha256.Size]byte) {
			binary.BigEndian.PutUint64(d[:], uint64(n))
			return d
		}
		for n := range maxKnown + 100 {
			k.remember(digest(n), &limits.VerifyReply{User: "7", Key: new(limits.KeyRef), Decision: &limits.Reply{}})
		}
		last := digest(maxKnown + 99)
		if known := k.recall(last); len(k.all) != maxKnown || known == nil || known.User != "7" || !known.Decision.Degraded {
			t.Errorf("%d keys, the last is %+v", len(k.all), known)
		}
		k.remember(last, &limits.VerifyReply{User: "8", Key: new(limits.KeyRef)})
		if time.Sleep(knownFor); len(k.all) != maxKnown || k.recall(last) == nil || k.recall(last).User != "8" {
			t.Errorf("%d keys after one came again: %+v", len(k.all), k.recall(last))
		}
		if time.Sleep(time.Second); k.recall(last) != nil {
			t.Errorf("a key passes after %v", knownFor)
		}
		k.remember(last, &limits.VerifyReply{Key: new(limits.KeyRef)})
		if k.forget(last); k.recall(last) != nil {
			t.Error("a key that is not valid any more passes")
		}
	})
}
