package bus

// The schemas that endpoints and events name, as paths below the schema base; package schemas holds the files and
// a test holds the two together.
const (
	SchemaRequest       = "api/request.v1.json"
	SchemaReply         = "api/reply.v1.json"
	SchemaStatusRequest = "api/status-request.v1.json"
	SchemaStatus        = "api/status.v1.json"
	SchemaListRequest   = "api/list-request.v1.json"
	SchemaList          = "api/list.v1.json"
	SchemaResetRequest  = "api/reset-request.v1.json"
	SchemaReset         = "api/reset.v1.json"
	SchemaSettleRequest = "api/settle-request.v1.json"
	SchemaLogEntry      = "api/log-entry.v1.json"
	SchemaTopRequest    = "api/top-request.v1.json"
	SchemaTop           = "api/top.v1.json"
	SchemaUsageRequest  = "api/usage-request.v1.json"
	SchemaUsage         = "api/usage.v1.json"
	SchemaError         = "api/error.v1.json"
	SchemaWarning       = "events/limits.warning.v1.json"
	SchemaExceeded      = "events/limits.exceeded.v1.json"
	SchemaReport        = "events/limits.report.v1.json"
	AsyncAPI            = "asyncapi.yaml"
)

// The schemas of API keys and overrides.
const (
	SchemaVerifyRequest          = "api/verify-request.v1.json"
	SchemaVerify                 = "api/verify.v1.json"
	SchemaKeysCreateRequest      = "api/keys-create-request.v1.json"
	SchemaKeysCreate             = "api/keys-create.v1.json"
	SchemaKeysListRequest        = "api/keys-list-request.v1.json"
	SchemaKeysList               = "api/keys-list.v1.json"
	SchemaKeysRevokeRequest      = "api/keys-revoke-request.v1.json"
	SchemaKeysExpireRequest      = "api/keys-expire-request.v1.json"
	SchemaKey                    = "api/key.v1.json"
	SchemaOverridesSetRequest    = "api/overrides-set-request.v1.json"
	SchemaOverridesSet           = "api/overrides-set.v1.json"
	SchemaOverridesDeleteRequest = "api/overrides-delete-request.v1.json"
	SchemaOverridesDelete        = "api/overrides-delete.v1.json"
	SchemaOverridesListRequest   = "api/overrides-list-request.v1.json"
	SchemaOverridesList          = "api/overrides-list.v1.json"
)
