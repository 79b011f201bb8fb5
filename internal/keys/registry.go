package keys

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// Config configures a [Registry].
type Config struct {
	// Store stores the keys; required.
	Store Store
	// Prefix begins new keys: 1 to 16 lower case letters and digits, in words joined by underscores; [DefaultPrefix] by
	// default.
	Prefix string
	// Now is the clock by which keys expire; [time.Now] by default.
	Now func() time.Time
	// CacheSize is how many keys are cached, and also how many ids that do not exist; 65536 by default.
	CacheSize int
	// Broadcast makes other workers call [Registry.Forget]; none by default.
	Broadcast func(id string)
}

func (c *Config) defaults() error {
	if c.Store == nil {
		return errors.New("keys: Store is missing")
	}
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.CacheSize <= 0 {
		c.CacheSize = 65536
	}
	if c.Broadcast == nil {
		c.Broadcast = func(string) {}
	}
	return CheckPrefix(c.Prefix)
}

const (
	// confirmedFor is for how long the revision of the keys is relied on, and for how long an id is known not to exist. If the
	// broadcast of a revocation is lost, the revocation takes effect after that time.
	confirmedFor = 900 * time.Millisecond
	// confirmAfter is the age at which the revision is read again, so that nobody has to wait for it.
	confirmAfter = confirmedFor / 2
	// reliedOnFor is for how long a key is relied on whatever the revision says: a change may have escaped it, such as one made
	// while triggers were off, or the loss of the last transactions when a standby took over.
	reliedOnFor = time.Minute
)

// lookupTimeout bounds a lookup in the store. A lookup goes on when the caller that started it has given up, because other
// callers may wait for it.
const lookupTimeout = 5 * time.Second

// While the store answers no lookup, such as on a network that has silently stopped, callers wait for hangingPatience and no
// longer, so that they are told soon. At most hangingTries lookups try it meanwhile; the first that is answered ends this.
const (
	hangingPatience = 100 * time.Millisecond
	hangingTries    = 64
)

// errHanging says that a lookup was not even tried.
var errHanging = errors.New("the store does not answer lookups")

// Registry creates, changes and verifies keys. It is safe for concurrent use.
//
// It caches keys for as long as the store's revision of all keys is the one with which they were read, at most a minute, and
// reads that twice a second while keys are verified. Ids that do not exist have a cache of their own, so that a flood of
// invented keys does not evict real ones. The secret is never cached.
type Registry struct {
	cfg     Config
	cache   *lru.Cache[string, cachedKey]
	missing *lru.Cache[string, time.Time] // ids that do not exist, and until when that is cached
	seen    atomic.Pointer[sight]
	lookups singleflight.Group
	// running counts lookups. hanging says that a caller has waited for one in vain, and that none was answered since.
	running atomic.Int64
	hanging atomic.Bool
	// cacheMu guards changes of the caches and generation, which counts the calls of Forget. An answer that was read before
	// a Forget must not be cached after it.
	cacheMu    sync.Mutex
	generation uint64
}

type cachedKey struct {
	key      *Key
	revision int64
	at       time.Time // from when on it is relied on
}

// sight is the revision of the keys that a read which began at a moment has seen.
type sight struct {
	revision int64
	at       time.Time
	// ahead says that a read has begun that is to confirm it.
	ahead atomic.Bool
}

// New returns a registry.
func New(cfg Config) (*Registry, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg}
	var err error
	if r.cache, err = lru.New[string, cachedKey](cfg.CacheSize); err != nil {
		return nil, err
	}
	r.missing, err = lru.New[string, time.Time](cfg.CacheSize)
	return r, err
}

func (r *Registry) now() int64 { return r.cfg.Now().UnixMilli() }

// Create creates a key with the name, user, tier, attributes and expiry of k. text is the whole key, which is not stored.
func (r *Registry) Create(ctx context.Context, k Key) (text string, _ Key, err error) {
	for range 3 { // an id has 47 random bits, so several collisions in a row mean that the store is broken
		text, k.ID = generate(r.cfg.Prefix)
		k.Hash, k.CreatedAt, k.RevokedAt = sha256.Sum256([]byte(text)), r.now(), 0
		if err = r.cfg.Store.CreateKey(ctx, k); !errors.Is(err, ErrExists) {
			break
		}
	}
	if err != nil {
		return "", Key{}, fmt.Errorf("create API key: %w", err)
	}
	return text, k, nil
}

// List returns a page of keys. more tells whether further keys follow.
func (r *Registry) List(ctx context.Context, f Filter) (page []Key, more bool, err error) {
	max := f.Max
	f.Max++
	if page, err = r.cfg.Store.ListKeys(ctx, f); err != nil {
		return nil, false, fmt.Errorf("list API keys: %w", err)
	}
	if len(page) > max {
		return page[:max], true, nil
	}
	return page, false, nil
}

// Revoke revokes a key for good, on this worker at once and on the others with the broadcast. A key that was already
// revoked keeps its time. The error is [ErrUnknown] if the id does not exist.
func (r *Registry) Revoke(ctx context.Context, id string) (Key, error) {
	k, found, err := r.cfg.Store.RevokeKey(ctx, id, r.now())
	return r.changed(id, k, found, err)
}

// Expire sets when a key expires, in Unix milliseconds, 0 for never. The error is [ErrUnknown] if the id does not exist.
func (r *Registry) Expire(ctx context.Context, id string, at int64) (Key, error) {
	k, found, err := r.cfg.Store.ExpireKey(ctx, id, at)
	return r.changed(id, k, found, err)
}

// changed drops a key from the caches of all workers after it was changed.
func (r *Registry) changed(id string, k Key, found bool, err error) (Key, error) {
	// Even after an error, because the change may have been made. A key that is not stored may still be cached.
	r.Forget(id)
	r.cfg.Broadcast(id)
	if err != nil {
		return Key{}, fmt.Errorf("change API key %s: %w", id, err)
	}
	if !found {
		return Key{}, ErrUnknown
	}
	return k, nil
}

// Forget drops a key from the caches of this registry.
func (r *Registry) Forget(id string) {
	r.cacheMu.Lock()
	defer r.cacheMu.Unlock()
	r.generation++
	r.lookups.Forget(id)
	r.cache.Remove(id)
	r.missing.Remove(id)
}

// VerifyCached verifies a key without asking the store. ok is false if that needs a lookup.
func (r *Registry) VerifyCached(text string) (k *Key, code Code, ok bool) {
	id, formed := parse(text)
	if !formed {
		return nil, Unknown, true
	}
	now := r.cfg.Now()
	cached, ok := r.cached(id, now)
	if !ok {
		return nil, Unknown, false
	}
	k, code = check(text, cached, now)
	return k, code, true
}

// Holds reports whether a key that was valid still is, without asking the store. If not, it may have to be looked up.
func (r *Registry) Holds(k *Key) bool {
	now := r.cfg.Now()
	cached, _ := r.cached(k.ID, now)
	return cached == k && k.code(now.UnixMilli()) == Valid
}

// cached returns the cached key with an id, nil if the id is known not to exist. ok is false if nothing is cached.
func (r *Registry) cached(id string, now time.Time) (k *Key, ok bool) {
	if c, found := r.cache.Get(id); found {
		if s := r.seen.Load(); c.revision == s.revision && now.Sub(s.at) < confirmedFor && now.Sub(c.at) < reliedOnFor {
			r.confirmAhead(s, c.key.ID, now)
			return c.key, true
		}
	}
	until, _ := r.missing.Get(id)
	return nil, now.Before(until)
}

// confirmAhead has the revision read again, together with some key, before anybody has to wait for it. If that fails, those
// who verify keys when it is too old will hear of it.
func (r *Registry) confirmAhead(s *sight, id string, now time.Time) {
	if now.Sub(s.at) < confirmAfter || !s.ahead.CompareAndSwap(false, true) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		defer cancel()
		_, _ = r.fetch(ctx, id)
	}()
}

// Verify verifies a key. The code says what is wrong with the key; the error is one of the store. A key that is inactive or
// expired is returned with its code, since the caller has its secret; an unknown one is nil.
func (r *Registry) Verify(ctx context.Context, text string) (*Key, Code, error) {
	if k, code, ok := r.VerifyCached(text); ok {
		return k, code, nil
	}
	id, _ := parse(text)
	// The id outlives the request in the cache. As a substring it would retain the whole text, with the secret.
	id = strings.Clone(id)
	if r.hanging.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hangingPatience)
		defer cancel()
	}
	answer := r.lookups.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer cancel()
		return r.read(ctx, id)
	})
	select {
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.hanging.Store(true)
		}
		return nil, Unknown, fmt.Errorf("read API key %s: %w", id, ctx.Err())
	case a := <-answer:
		if a.Err != nil {
			return nil, Unknown, fmt.Errorf("read API key %s: %w", id, a.Err)
		}
		k, code := check(text, a.Val.(*Key), r.cfg.Now())
		return k, code, nil
	}
}

// read looks a key up. It returns nil if the id does not exist. If another lookup has filled the cache meanwhile, the store is
// not asked.
func (r *Registry) read(ctx context.Context, id string) (*Key, error) {
	if k, ok := r.cached(id, r.cfg.Now()); ok {
		return k, nil
	}
	return r.fetch(ctx, id)
}

// fetch reads a key from the store and caches it. What it reads is relied on from before the read.
func (r *Registry) fetch(ctx context.Context, id string) (*Key, error) {
	began := r.cfg.Now()
	r.cacheMu.Lock()
	generation := r.generation
	r.cacheMu.Unlock()
	defer r.running.Add(-1)
	if r.running.Add(1) > hangingTries && r.hanging.Load() {
		return nil, errHanging
	}
	stored, found, err := r.cfg.Store.Key(ctx, id)
	if err != nil {
		return nil, err
	}
	r.hanging.Store(false)
	r.cacheMu.Lock()
	defer r.cacheMu.Unlock()
	cacheable := r.generation == generation
	if !found {
		if cacheable {
			r.cache.Remove(id)
			r.missing.Add(id, began.Add(confirmedFor))
		}
		return nil, nil
	}
	k := &stored.Key
	if old, _ := r.cache.Peek(id); reflect.DeepEqual(old.key, k) {
		k = old.key // so that it still is what Holds is asked about
	}
	if s := r.seen.Load(); s == nil || !began.Before(s.at) {
		r.seen.Store(&sight{revision: stored.Revision, at: began})
	}
	if cacheable {
		r.cache.Add(id, cachedKey{k, stored.Revision, began})
	}
	return k, nil
}

// check compares the secret with that of k, in constant time, and checks whether k is valid. k is nil for an unknown id.
func check(text string, k *Key, now time.Time) (*Key, Code) {
	if k == nil {
		return nil, Unknown
	}
	hash := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(hash[:], k.Hash[:]) != 1 {
		return nil, Unknown
	}
	return k, k.code(now.UnixMilli())
}
