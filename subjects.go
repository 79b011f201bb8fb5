package limits

// The NATS subjects of decisions, counters and policies. Workers answer requests on them in the queue group
// [QueueGroup]. The subjects of usage, API keys, overrides, jobs and alerts are declared with their types.
const (
	SubjectConsume = "limits.consume"
	SubjectCheck   = "limits.check"
	SubjectRecord  = "limits.record"
	SubjectRefund  = "limits.refund"
	SubjectSettle  = "limits.settle"
	SubjectStatus  = "limits.status"
	SubjectList    = "limits.admin.list"
	SubjectReset   = "limits.admin.reset"

	SubjectPolicies = "limits.admin.policies"
)

// ServiceName is the name of the NATS micro service. QueueGroup is the queue group that its workers share.
const (
	ServiceName = "limits"
	QueueGroup  = "limiter"
)

// Bounds of a request. A request outside of them is answered with an [*Error].
const (
	MaxRequestBytes = 16 << 10      // larger: error 413
	MaxLimits       = 16            // limits in one request; more: error 413
	MaxKeyBytes     = 256           // key: 1 to 256 bytes of printable UTF-8
	MaxNameBytes    = 64            // name: 1 to 64 bytes of printable UTF-8
	MaxIDBytes      = 128           // id: 1 to 128 bytes of printable UTF-8
	MaxAmount       = 1_000_000_000 // limit, burst and cost
	MaxListPage     = 1000          // counters in one page of admin.list
)
