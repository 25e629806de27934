package simulation

// Result is the result of a history.
type Result struct {
	// Violations are the violated properties, each with what happened; empty if there are none.
	Violations []string
	// Trace is what happened, line by line. The order of lines of the same instant is random.
	Trace []string
	// Requests is the number of requests by class of client, verb and resource.
	Requests map[string]int
}
