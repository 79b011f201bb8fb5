package limits

import "context"

// The subjects of API keys.
const (
	SubjectVerify     = "limits.verify"
	SubjectKeysCreate = "limits.admin.keys.create"
	SubjectKeysList   = "limits.admin.keys.list"
	SubjectKeysRevoke = "limits.admin.keys.revoke"
	SubjectKeysExpire = "limits.admin.keys.expire"
)

// The codes of a [VerifyReply] for a key that is not valid.
const (
	KeyUnknown  = "unknown"  // no key of this service
	KeyInactive = "inactive" // revoked
	KeyExpired  = "expired"
)

// CodeUnknownKey is the code of the error 404 for an id that no API key has.
const CodeUnknownKey = "unknown_key"

// Bounds of an API key.
const (
	MaxAttributes     = 32  // attributes in one request
	MaxKeyAttributes  = 16  // attributes of one API key
	MaxAttributeBytes = 256 // value of an attribute, and user: 1 to 256 bytes of printable UTF-8
)

// VerifyRequest is the body of verify: an API key, and the rest of a request that names a policy or lets the
// attributes find it.
type VerifyRequest struct {
	// APIKey is the whole key, as it was shown when it was made.
	APIKey string `json:"apiKey"`
	// Attributes are those of the request. Those of the key, and the attributes "user" and "key" (its id), replace
	// the ones of the same name.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Policy is the name of a policy. Left out, every policy whose match fits the attributes applies.
	Policy string `json:"policy,omitempty"`
	// Tier counts for a key that has none of its own.
	Tier string `json:"tier,omitempty"`
	// Cost is what the request charges to each limit: 1 unless said, up to [MaxAmount].
	Cost int64 `json:"cost,omitzero"`
	// ID makes the charge idempotent, as in a [Request].
	ID string `json:"id,omitempty"`
}

// VerifyReply says whether a key is valid, and when it is, what it stands for and what its limits decided. A request
// may go on when the key is valid and the decision allows it: see [VerifyReply.Allowed].
type VerifyReply struct {
	Valid bool `json:"valid"`
	// Code says why a key is not valid: [KeyUnknown], [KeyInactive] or [KeyExpired].
	Code string `json:"code,omitempty"`
	// Key is missing for an unknown key only.
	Key *KeyRef `json:"key,omitempty"`
	// User, Tier and Attributes are those of the key.
	User       string            `json:"user,omitempty"`
	Tier       string            `json:"tier,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Decision is that of all matching policies, charged as by consume; for every valid key, and no other.
	Decision *Reply `json:"decision,omitempty"`
}

// Allowed tells whether the key is valid and its limits allow the request.
func (r *VerifyReply) Allowed() bool { return r.Valid && r.Decision != nil && r.Decision.Allowed }

// KeyRef names an API key.
type KeyRef struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// APIKey is what is kept of an API key: all but the secret. Times are Unix milliseconds.
type APIKey struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"`
	User       string            `json:"user"`
	Tier       string            `json:"tier,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	CreatedAt  int64             `json:"createdAt"`
	// ExpiresAt is left out for a key that does not expire, RevokedAt for one that was not revoked.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	RevokedAt int64 `json:"revokedAt,omitzero"`
}

// CreateKeyRequest is the body of admin.keys.create.
type CreateKeyRequest struct {
	// User is whose requests the key makes.
	User string `json:"user"`
	// Name is for people.
	Name string `json:"name,omitempty"`
	Tier string `json:"tier,omitempty"`
	// Attributes are added to those of each request with the key: up to [MaxKeyAttributes], none of them named
	// "user", "key" or "tier".
	Attributes map[string]string `json:"attributes,omitempty"`
	// ExpiresAt is when the key expires, in Unix milliseconds; it does not unless said.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
}

// CreateKeyReply has a new key. APIKey is nowhere kept and never shown again.
type CreateKeyReply struct {
	APIKey string `json:"apiKey"`
	Key    APIKey `json:"key"`
}

// ListKeysRequest is the body of admin.keys.list: a page of keys in order of their ids.
type ListKeysRequest struct {
	// User selects the keys of one user; all unless said.
	User string `json:"user,omitempty"`
	// Prefix is what the ids begin with.
	Prefix string `json:"prefix,omitempty"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
	// Max is how many keys a page holds: 100 unless said, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// KeyList is a page of keys. Next, when there, is the After of the page that follows.
type KeyList struct {
	Keys []APIKey `json:"keys"`
	Next string   `json:"next,omitempty"`
}

// RevokeKeyRequest is the body of admin.keys.revoke.
type RevokeKeyRequest struct {
	// ID is the id of the key, which is also the part of it behind its prefix.
	ID string `json:"id"`
}

// ExpireKeyRequest is the body of admin.keys.expire.
type ExpireKeyRequest struct {
	ID string `json:"id"`
	// ExpiresAt is when the key expires, in Unix milliseconds; 0 for never.
	ExpiresAt int64 `json:"expiresAt"`
}

// KeyReply is a key as it is after a change.
type KeyReply struct {
	Key APIKey `json:"key"`
}

// VerifyKey verifies an API key and charges the limits of its user in the same step. A key that is not valid is a
// normal reply. With an ID the charge can be settled, as that of [Client.Consume].
func (c *Client) VerifyKey(ctx context.Context, r VerifyRequest) (*VerifyReply, error) {
	answer, err := call[struct {
		VerifyReply
		Valid    *bool    `json:"valid"`
		Decision *decided `json:"decision"`
	}](ctx, c, SubjectVerify, r)
	switch {
	case err != nil:
		return nil, err
	case answer.Valid == nil:
		return nil, lacks(SubjectVerify, "valid")
	}
	reply := &answer.VerifyReply
	reply.Valid, reply.Decision = *answer.Valid, answer.Decision.reply()
	switch {
	case !reply.Valid:
		return reply, nil
	case reply.Key == nil:
		return nil, lacks(SubjectVerify, "key")
	case reply.Decision == nil:
		return nil, lacks(SubjectVerify, "decision.allowed")
	}
	reply.Decision.ID = r.ID
	return reply, nil
}

// CreateKey makes an API key. After a call that got no answer there may be a key that nobody knows: list the keys of
// the user and revoke it.
func (c *Client) CreateKey(ctx context.Context, r CreateKeyRequest) (*CreateKeyReply, error) {
	return call[CreateKeyReply](ctx, c, SubjectKeysCreate, r)
}

// ListKeys gives one page of API keys.
func (c *Client) ListKeys(ctx context.Context, r ListKeysRequest) (*KeyList, error) {
	return call[KeyList](ctx, c, SubjectKeysList, r)
}

// RevokeKey ends an API key for good, on every worker within a second.
func (c *Client) RevokeKey(ctx context.Context, id string) (*KeyReply, error) {
	return call[KeyReply](ctx, c, SubjectKeysRevoke, RevokeKeyRequest{ID: id})
}

// ExpireKey sets when an API key expires, in Unix milliseconds; 0 for never.
func (c *Client) ExpireKey(ctx context.Context, id string, at int64) (*KeyReply, error) {
	return call[KeyReply](ctx, c, SubjectKeysExpire, ExpireKeyRequest{ID: id, ExpiresAt: at})
}
