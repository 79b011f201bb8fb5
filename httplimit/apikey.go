package httplimit

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
)

// Bearer reads the bearer token of the header Authorization, for [Config.APIKey]. If browser sessions use bearer tokens
// too, take API keys from another header, or tell the two apart with [Credential].
func Bearer() Attribute {
	return func(r *http.Request) string {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return ""
		}
		return strings.Trim(token, " ")
	}
}

// apiKeyCtxKey is the context key of a request's verified API key, a *limits.VerifyReply.
type apiKeyCtxKey struct{}

// KeyFrom returns the verified API key of a request: its id, user, tier and attributes. ctx is the context of the
// request. If several middlewares with [Config.APIKey] are nested, it is the key of the innermost. The caller may modify
// the reply.
//
// If the limiter could not verify the key, which was valid before, Decision is that of its limits alone. If the limiter did
// not answer at all, it has Allowed and Degraded set and no limit. ok is false if the request was exempt.
func KeyFrom(ctx context.Context) (key *limits.VerifyReply, ok bool) {
	key, _ = ctx.Value(apiKeyCtxKey{}).(*limits.VerifyReply)
	return key, key != nil
}

// withKey returns a request in whose context [KeyFrom] finds the key of the answer.
func (a *Answer) withKey(r *http.Request) *http.Request {
	if a.Key == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), apiKeyCtxKey{}, a.Key))
}

// maxAPIKeyBytes is more than any API key has. A longer key, or one that is not text, is refused without asking the
// limiter.
const maxAPIKeyBytes = 256

// verify asks the limiter whose API key the request has and whether its limits allow the request. If the limiter cannot say
// whose, a request with a cached key is decided as that key's, and passes if there is no decision either, unless FailClosed
// is set. Any other request is refused.
func (m *middleware) verify(r *http.Request, request limits.Request, a *Answer) error {
	key := m.APIKey(r)
	switch {
	case key == "":
		a.Status = http.StatusUnauthorized
		return nil
	case len(key) > maxAPIKeyBytes || !utf8.ValidString(key):
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
		if a.Status = m.refusal(err); a.Status != 0 {
			break
		}
		if a.Key = m.keys.get(digest); a.Key == nil {
			a.Status = m.FailStatus
		} else if e, ok := errors.AsType[*limits.Error](err); ok && e.Code == limits.CodeUnavailable {
			m.consumeAs(r, request, a)
		}
	case !a.Key.Valid:
		m.keys.remove(digest)
		a.Status = http.StatusUnauthorized
	default:
		a.Reply = a.Key.Decision
		if !m.FailClosed {
			m.keys.put(digest, a.Key)
		}
	}
	return err
}

// consumeAs decides a request as that of a key that was valid lately: a limiter that cannot read keys may still decide, and
// knows which policies deny without its store.
func (m *middleware) consumeAs(r *http.Request, request limits.Request, a *Answer) {
	request = asKey(request, a.Key)
	if len(request.Attributes) > limits.MaxAttributes {
		return // the limiter itself adds those of a key to as many
	}
	reply, err := m.ask(r, m.client.Consume, request, m.Deadline)
	if err != nil {
		a.Status = m.refusal(err)
		return
	}
	a.Reply, a.Key.Decision = reply, reply
}

// asKey is the consume that the limiter makes of a request with a valid key. What the key says takes precedence.
func asKey(request limits.Request, key *limits.VerifyReply) limits.Request {
	attributes := map[string]string{}
	maps.Copy(attributes, request.Attributes)
	maps.Copy(attributes, key.Attributes)
	attributes["user"], attributes["key"] = key.User, key.Key.ID
	if key.Tier != "" {
		request.Tier, attributes["tier"] = key.Tier, key.Tier
	}
	request.Attributes = attributes
	return request
}

// challenge is the WWW-Authenticate header of a 401 (RFC 9110, 11.6.1), in the format of RFC 6750.
func (a *Answer) challenge() string {
	if a.Key == nil {
		return "Bearer"
	}
	return `Bearer error="invalid_token", error_description="` + failure(a) + `"`
}

const (
	// validKeyTTL is how long a key passes without an answer of the limiter after it was last valid. It may have been
	// revoked since.
	validKeyTTL   = time.Hour
	maxCachedKeys = 1 << 16
)

// validKeyCache holds the keys that were valid lately, by their SHA-256, for when the limiter does not answer.
type validKeyCache struct {
	mu       sync.Mutex
	byDigest map[[sha256.Size]byte]cachedKey
}

type cachedKey struct {
	key     *limits.VerifyReply
	validAt time.Time
}

// undecided returns a deep copy of a valid key, since handlers may modify what they get. The decision was about another
// request, so the copy has that of a request that passes without an answer.
func undecided(key *limits.VerifyReply) *limits.VerifyReply {
	plain, ref := *key, *key.Key
	plain.Key, plain.Attributes = &ref, maps.Clone(key.Attributes)
	plain.Decision = &limits.Reply{Allowed: true, Degraded: true}
	return &plain
}

// put caches a key. If the cache is full, the key replaces an arbitrary other one.
func (c *validKeyCache) put(digest [sha256.Size]byte, key *limits.VerifyReply) {
	own := undecided(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byDigest == nil {
		c.byDigest = map[[sha256.Size]byte]cachedKey{}
	}
	if _, cached := c.byDigest[digest]; !cached && len(c.byDigest) >= maxCachedKeys {
		for other := range c.byDigest {
			delete(c.byDigest, other)
			break
		}
	}
	c.byDigest[digest] = cachedKey{own, time.Now()}
}

// get returns nil for a key that was not valid lately.
func (c *validKeyCache) get(digest [sha256.Size]byte) *limits.VerifyReply {
	c.mu.Lock()
	cached := c.byDigest[digest]
	c.mu.Unlock()
	if time.Since(cached.validAt) > validKeyTTL {
		return nil
	}
	return undecided(cached.key)
}

func (c *validKeyCache) remove(digest [sha256.Size]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byDigest, digest)
}
