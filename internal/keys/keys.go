// Package keys issues API keys and verifies them.
//
// An API key is random text that is shown once, when it is created. The store has its SHA-256 and what it stands for: a
// user, a tier and attributes. A fast hash suffices, because nobody can try 2^160 secrets. Slow hashes are for passwords,
// which people choose.
//
// The package knows nothing of limits, of the wire, or of SQL.
package keys

import (
	"context"
	"errors"
	"time"
)

// Key is a stored API key, without its secret. Times are Unix milliseconds, 0 for never.
type Key struct {
	// ID is the public part of the key, which identifies it.
	ID string
	// Hash is the SHA-256 of the whole key.
	Hash [32]byte
	// Name is a label for people.
	Name string
	// User, Tier and Attributes determine the limits of requests with the key.
	User, Tier string
	Attributes map[string]string

	CreatedAt, ExpiresAt, RevokedAt int64
}

// Stored is a key as it was read from a store. Revision is that of all keys at a moment before: as long as it is the same, no
// key that was read with it has changed.
type Stored struct {
	Key
	Revision int64
}

// EndedRetention is how long a key that has expired or was revoked is still shown. Then the job keys-prune removes it.
const EndedRetention = 30 * 24 * time.Hour

// Code says why a key is not valid. It is empty for a valid key.
type Code string

// The codes.
const (
	Valid Code = ""
	// Unknown is a text that is not a key, or a key that this service did not create or has removed since.
	Unknown Code = "unknown"
	// Inactive is a key that was revoked.
	Inactive Code = "inactive"
	Expired  Code = "expired"
)

// code returns the code of a key whose secret was correct.
func (k *Key) code(now int64) Code {
	switch {
	case k.RevokedAt != 0:
		return Inactive
	case k.ExpiresAt != 0 && k.ExpiresAt <= now:
		return Expired
	}
	return Valid
}

// Filter selects keys for a list.
type Filter struct {
	// User selects the keys of one user; all users by default.
	User string
	// Prefix selects the keys whose id begins with it.
	Prefix string
	// After is the id after which the page begins.
	After string
	// Max is how many keys a page holds.
	Max int
}

// Store keeps keys.
type Store interface {
	// CreateKey adds a key. The error is [ErrExists] if there is one with the same id.
	CreateKey(ctx context.Context, k Key) error
	// Key finds a key by its id.
	Key(ctx context.Context, id string) (k Stored, found bool, err error)
	// ListKeys returns keys in the byte order of their ids.
	ListKeys(ctx context.Context, f Filter) ([]Key, error)
	// RevokeKey sets when a key was revoked, unless it has been revoked already, and returns the resulting key.
	RevokeKey(ctx context.Context, id string, at int64) (k Key, found bool, err error)
	// ExpireKey sets when a key expires, 0 for never, and returns the resulting key.
	ExpireKey(ctx context.Context, id string, at int64) (k Key, found bool, err error)
}

// Errors that callers tell apart.
var (
	ErrExists  = errors.New("an API key with this id already exists")
	ErrUnknown = errors.New("API key not found")
)
