package limits

// These are for tests that need a limiter, which imports this package.
var (
	ReadReply         = readReply
	ReadVerifyReply   = readVerifyReply
	DecodeVerifyReply = decodeVerifyReply
)

func DecodeReply(answer []byte) (*Reply, error) { return decodeReply(SubjectConsume, answer) }
