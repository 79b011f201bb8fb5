package httplimit

import (
	"context"
	"crypto/sha256"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
)

// Bearer reads the token of the header Authorization, for [Config.APIKey]. Where sessions have such tokens too, take keys from a header
// of their own, or let [Credential] tell the two apart.
func Bearer() Attribute {
	return func(r *http.Request) string {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return ""
		}
		return strings.Trim(token, " ")
	}
}

// keyKey is the key of what a request's API key stands for, a *limits.VerifyReply, in its context.
type keyKey struct{}

// KeyFrom gives what the request's API key stands for, of the nearest middleware with [Config.APIKey]: its id, user, tier and attributes.
// What it gives is the request's own, to change at will. Where the limiter did not answer and the key was valid before, Decision is
// Degraded, allows the request, as the middleware did, and tells no limit. There is no key when the request was exempt.
func KeyFrom(ctx context.Context) (key *limits.VerifyReply, ok bool) {
	key, _ = ctx.Value(keyKey{}).(*limits.VerifyReply)
	return key, key != nil
}

// withKey gives the request in whose context [KeyFrom] finds the key of an answer.
func (a *Answer) withKey(r *http.Request) *http.Request {
	if a.Key == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), keyKey{}, a.Key))
}

// maxKeyBytes is more than any key has. What is longer, or no text, is unknown without a question, and so is an absent key no question.
const maxKeyBytes = 256

// verify asks whose key the request has and, in the same step, whether its limits allow it. Without an answer a request has no decision,
// and passes for what its key stood for before, unless FailClosed is set; whose another key is, nobody can say.
func (m *middleware) verify(r *http.Request, request limits.Request, a *Answer) error {
	key := m.APIKey(r)
	switch {
	case key == "":
		a.Status = http.StatusUnauthorized
		return nil
	case len(key) > maxKeyBytes || !utf8.ValidString(key):
		a.Status, a.Key = http.StatusUnauthorized, &limits.VerifyReply{Code: limits.KeyUnknown}
		return nil
	}
	digest := sha256.Sum256([]byte(key))
	_, err := m.ask(r, func(ctx context.Context, q limits.Request) (_ *limits.Reply, err error) {
		a.Key, err = m.client.VerifyKey(ctx, limits.VerifyRequest{
			APIKey: key, Attributes: q.Attributes, Policy: q.Policy, Tier: q.Tier, Cost: q.Cost, ID: q.ID,
		})
		return nil, err
	}, request, m.Deadline)
	switch {
	case err != nil:
		if a.Status = m.refusal(err); a.Status == 0 {
			if a.Key = m.known.recall(digest); a.Key == nil {
				a.Status = m.FailStatus
			}
		}
	case !a.Key.Valid:
		m.known.forget(digest)
		a.Status = http.StatusUnauthorized
	default:
		a.Reply = a.Key.Decision
		if !m.FailClosed {
			m.known.remember(digest, a.Key)
		}
	}
	return err
}

// challenge is what an answer 401 has to say (RFC 9110, 11.6.1), in the words of RFC 6750.
func (a *Answer) challenge() string {
	if a.Key == nil {
		return "Bearer"
	}
	return `Bearer error="invalid_token", error_description="` + failure(a) + `"`
}

const (
	// knownFor is how long a key passes without an answer after it was valid. It may have been revoked since.
	knownFor = time.Hour
	maxKnown = 1 << 16
)

// knownKeys is what valid keys stand for, by their SHA-256, for when the limiter does not answer.
type knownKeys struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]knownKey
}

type knownKey struct {
	key  *limits.VerifyReply
	seen time.Time
}

// passing copies what a valid key stands for, with nothing shared, since handlers may change what they have. The decision was of one
// request: the copy has that of one that passes without an answer.
func passing(key *limits.VerifyReply) *limits.VerifyReply {
	plain, ref := *key, *key.Key
	plain.Key, plain.Attributes = &ref, maps.Clone(key.Attributes)
	plain.Decision = &limits.Reply{Allowed: true, Degraded: true}
	return &plain
}

// remember makes room, where there is none, in the place of another key, whichever that is.
func (k *knownKeys) remember(digest [sha256.Size]byte, key *limits.VerifyReply) {
	mine := passing(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[[sha256.Size]byte]knownKey{}
	}
	if _, there := k.all[digest]; !there && len(k.all) >= maxKnown {
		for other := range k.all {
			delete(k.all, other)
			break
		}
	}
	k.all[digest] = knownKey{mine, time.Now()}
}

// recall gives nil for a key that was not valid lately.
func (k *knownKeys) recall(digest [sha256.Size]byte) *limits.VerifyReply {
	k.mu.Lock()
	known := k.all[digest]
	k.mu.Unlock()
	if time.Since(known.seen) > knownFor {
		return nil
	}
	return passing(known.key)
}

func (k *knownKeys) forget(digest [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, digest)
}
