package limits

// ReadReply and ReadVerifyReply are for tests that need a limiter, which imports this package.
var (
	ReadReply       = readReply
	ReadVerifyReply = readVerifyReply
)
