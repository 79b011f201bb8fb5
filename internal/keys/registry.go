package keys

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// Config configures a [Registry].
type Config struct {
	// Store keeps the keys; required.
	Store Store
	// Prefix begins the keys that are made, [DefaultPrefix] unless set: 1 to 16 lower case letters and digits, in
	// words joined by underscores.
	Prefix string
	// Now is the clock by which keys expire, [time.Now] unless set.
	Now func() time.Time
	// Remember is how long what the store said of a key is used again, 900 ms unless set. A revocation whose
	// broadcast got lost is noticed after that time.
	Remember time.Duration
	// Most bounds the keys that are remembered, and as many ids that do not exist; 65536 unless set.
	Most int
	// Broadcast makes the registries of other workers forget a key; none are told unless set.
	Broadcast func(id string)
}

func (c *Config) defaults() error {
	if c.Store == nil {
		return errors.New("keys: Store is missing")
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Remember <= 0 {
		c.Remember = 900 * time.Millisecond
	}
	if c.Most <= 0 {
		c.Most = 65536
	}
	if c.Broadcast == nil {
		c.Broadcast = func(string) {}
	}
	return CheckPrefix(c.Prefix)
}

// lookupTimeout bounds a look-up, which goes on when the one who asked first has given up: others may wait for it.
const lookupTimeout = 5 * time.Second

// Registry makes, changes and verifies keys. Its methods may be called at the same time.
//
// It remembers what the store said of an id for a moment. Ids that do not exist are remembered apart, so that a flood
// of made-up keys does not drive out the real ones. The secret is compared on each use and never kept.
type Registry struct {
	cfg    Config
	known  *lru.Cache[string, memo]
	absent *lru.Cache[string, time.Time]
	lookup singleflight.Group
	// forgetting is held while something is remembered or forgotten, and generation counts the calls of Forget: what
	// was read before one must not be remembered after it.
	forgetting sync.Mutex
	generation uint64
}

type memo struct {
	key   *Key
	until time.Time
}

// New makes a registry.
func New(cfg Config) (*Registry, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	r := &Registry{cfg: cfg}
	var err error
	if r.known, err = lru.New[string, memo](cfg.Most); err != nil {
		return nil, err
	}
	r.absent, err = lru.New[string, time.Time](cfg.Most)
	return r, err
}

func (r *Registry) now() int64 { return r.cfg.Now().UnixMilli() }

// Create makes a key of the name, user, tier, attributes and expiry of k. The text is nowhere kept.
func (r *Registry) Create(ctx context.Context, k Key) (text string, _ Key, err error) {
	for range 3 { // an id has 47 bits, so a second one that exists is a broken store
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

// List gives a page of keys; more tells whether others follow.
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

// Revoke ends a key for good, on this worker at once and on the others with the broadcast. A key that was revoked
// before keeps its time. The error is [ErrUnknown] for an id that does not exist.
func (r *Registry) Revoke(ctx context.Context, id string) (Key, error) {
	k, found, err := r.cfg.Store.RevokeKey(ctx, id, r.now())
	return r.changed(id, k, found, err)
}

// Expire sets when a key expires, 0 for never. The error is [ErrUnknown] for an id that does not exist.
func (r *Registry) Expire(ctx context.Context, id string, at int64) (Key, error) {
	k, found, err := r.cfg.Store.ExpireKey(ctx, id, at)
	return r.changed(id, k, found, err)
}

func (r *Registry) changed(id string, k Key, found bool, err error) (Key, error) {
	if err == nil && !found {
		return Key{}, ErrUnknown
	}
	// Also after an error: the change may have been made.
	r.Forget(id)
	r.cfg.Broadcast(id)
	if err != nil {
		return Key{}, fmt.Errorf("change API key %s: %w", id, err)
	}
	return k, nil
}

// Forget makes this registry ask the store again about a key.
func (r *Registry) Forget(id string) {
	r.forgetting.Lock()
	defer r.forgetting.Unlock()
	r.generation++
	r.lookup.Forget(id)
	r.known.Remove(id)
	r.absent.Remove(id)
}

// Recall verifies a key without the store; ok is false when that takes a look-up.
func (r *Registry) Recall(text string) (k Key, code Code, ok bool) {
	id, formed := parse(text)
	if !formed {
		return Key{}, Unknown, true
	}
	now := r.cfg.Now()
	known, ok := r.recall(id, now)
	if !ok {
		return Key{}, Unknown, false
	}
	k, code = judge(text, known, now)
	return k, code, true
}

// recall gives what is remembered of an id: nil for one that does not exist. ok is false when nothing is.
func (r *Registry) recall(id string, now time.Time) (k *Key, ok bool) {
	if m, found := r.known.Get(id); found && now.Before(m.until) {
		return m.key, true
	}
	until, found := r.absent.Get(id)
	return nil, found && now.Before(until)
}

// Verify verifies a key. The error is the store's; what is wrong with the key is told by the code. A key that is
// inactive or expired is given with its code: who presents it has its secret.
func (r *Registry) Verify(ctx context.Context, text string) (Key, Code, error) {
	if k, code, ok := r.Recall(text); ok {
		return k, code, nil
	}
	id, _ := parse(text)
	// The id outlives the request, and a part of the text would keep all of it in memory.
	id = strings.Clone(id)
	answer := r.lookup.DoChan(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
		defer cancel()
		return r.read(ctx, id)
	})
	select {
	case <-ctx.Done():
		return Key{}, Unknown, fmt.Errorf("read API key %s: %w", id, ctx.Err())
	case a := <-answer:
		if a.Err != nil {
			return Key{}, Unknown, fmt.Errorf("read API key %s: %w", id, a.Err)
		}
		k, code := judge(text, a.Val.(*Key), r.cfg.Now())
		return k, code, nil
	}
}

// read asks the store and remembers, counting from before it asked; it gives nil for an id that does not exist. It asks
// nothing when a look-up ended after its caller found that nothing was remembered.
func (r *Registry) read(ctx context.Context, id string) (*Key, error) {
	now := r.cfg.Now()
	if k, ok := r.recall(id, now); ok {
		return k, nil
	}
	r.forgetting.Lock()
	generation := r.generation
	r.forgetting.Unlock()
	k, found, err := r.cfg.Store.Key(ctx, id)
	if err != nil {
		return nil, err
	}
	r.forgetting.Lock()
	defer r.forgetting.Unlock()
	fresh, until := r.generation == generation, now.Add(r.cfg.Remember)
	if !found {
		if fresh {
			r.absent.Add(id, until)
		}
		return nil, nil
	}
	if fresh {
		r.known.Add(id, memo{&k, until})
	}
	return &k, nil
}

// judge compares the secret, in a time that says nothing of where it differs.
func judge(text string, k *Key, now time.Time) (Key, Code) {
	if k == nil {
		return Key{}, Unknown
	}
	hash := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(hash[:], k.Hash[:]) != 1 {
		return Key{}, Unknown
	}
	return *k, k.code(now.UnixMilli())
}
