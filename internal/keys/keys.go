// Package keys issues API keys and verifies them.
//
// A key is random text that is shown once, when it is made; what is kept is its SHA-256 and what it stands for: a
// user, a tier, attributes. A fast hash is enough, because nobody can try 2^160 secrets; slow ones are for passwords,
// which people choose.
//
// The package knows nothing of limits, of the wire, or of SQL.
package keys

import (
	"context"
	"errors"
)

// Key is what is kept of an API key. Times are Unix milliseconds, 0 for never.
type Key struct {
	// ID is the public part of the key, by which it is found and administered.
	ID string
	// Hash is the SHA-256 of the whole key.
	Hash [32]byte
	// Name is for people.
	Name string
	// User, Tier and Attributes are what a request with the key is limited by.
	User, Tier string
	Attributes map[string]string

	CreatedAt, ExpiresAt, RevokedAt int64
}

// Code says why a key is refused; it is empty for one that is valid.
type Code string

// The codes.
const (
	Valid Code = ""
	// Unknown is a text that is no key, or a key that was never made here.
	Unknown Code = "unknown"
	// Inactive is a key that was revoked.
	Inactive Code = "inactive"
	Expired  Code = "expired"
)

// code judges a key whose secret was right.
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
	// User selects the keys of one user; all unless set.
	User string
	// Prefix is what the ids begin with.
	Prefix string
	// After is the id behind which the page begins.
	After string
	// Max is how many keys a page holds.
	Max int
}

// Store keeps keys.
type Store interface {
	// CreateKey adds a key; [ErrExists] if there is one with its id.
	CreateKey(ctx context.Context, k Key) error
	// Key finds a key by its id.
	Key(ctx context.Context, id string) (k Key, found bool, err error)
	// ListKeys gives keys in byte order of their ids.
	ListKeys(ctx context.Context, f Filter) ([]Key, error)
	// RevokeKey sets when a key was revoked, unless it was before, and gives the key as it is then.
	RevokeKey(ctx context.Context, id string, at int64) (k Key, found bool, err error)
	// ExpireKey sets when a key expires, 0 for never, and gives the key as it is then.
	ExpireKey(ctx context.Context, id string, at int64) (k Key, found bool, err error)
}

// The errors that mean something.
var (
	ErrExists  = errors.New("there is an API key with this id")
	ErrUnknown = errors.New("there is no API key with this id")
)
