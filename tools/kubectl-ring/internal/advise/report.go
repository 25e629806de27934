package advise

// Verdict is what limits a controller.
type Verdict string

// Verdicts. Fine and Idle are no problem.
const (
	// Fine: the controller meets the target, and would with the growth.
	Fine Verdict = "Fine"
	// Idle: no reconcile ran.
	Idle Verdict = "Idle"
	// Workers: the controller is the bottleneck: it has too few workers. More workers help, and need no shards.
	Workers Verdict = "Workers"
	// CPU: the controller is the bottleneck: its process has too little CPU. Shards help.
	CPU Verdict = "CPU"
	// ClientRateLimit: the client of the process waits for its own limit of requests (QPS and burst).
	ClientRateLimit Verdict = "ClientRateLimit"
	// APIServer: the API server refuses requests, by its priority and fairness.
	APIServer Verdict = "APIServer"
	// Errors: reconciles that fail, and their retries, are much of the load.
	Errors Verdict = "Errors"
	// HotObject: one object changes all the time. One worker at a time reconciles an object.
	HotObject Verdict = "HotObject"
	// Bursts: workers are free, but work comes in bursts that have to wait.
	Bursts Verdict = "Bursts"
	// SlowReconciles: a reconcile alone takes longer than the target.
	SlowReconciles Verdict = "SlowReconciles"
	// Stuck: reconciles run, but none has ended in the interval.
	Stuck Verdict = "Stuck"
)

// Problem reports whether somebody has to act.
func (v Verdict) Problem() bool { return v != Fine && v != Idle }

// Finding is a fact that is worth knowing besides the verdict.
type Finding struct {
	// Reason is a word for programs.
	Reason string `json:"reason"`
	// Text is the fact, for people.
	Text string `json:"text"`
	// Do is what to do about it. Empty: nothing.
	Do string `json:"do,omitempty"`
}

// Plan is what meets the target with the growth, by the model. In each field, 0 means that no number does.
type Plan struct {
	// Shards is the least number of shards, each with as many workers as a process has now.
	Shards int `json:"shards"`
	// ShardsP99Seconds is the 99th percentile with them.
	ShardsP99Seconds float64 `json:"shardsP99Seconds"`
	// WorkersPerProcess is the least number of workers of a process, with as many processes as now.
	WorkersPerProcess int `json:"workersPerProcess"`
	// WorkersP99Seconds is the 99th percentile with them.
	WorkersP99Seconds float64 `json:"workersP99Seconds"`
	// CPUShards is the least number of shards that have enough CPU, and CPUWorkers how many workers each of them needs.
	CPUShards  int `json:"cpuShards"`
	CPUWorkers int `json:"cpuWorkers"`
	// Room is by how much the load may grow until the target is missed with today's processes and workers. Below 1, it is missed today.
	Room float64 `json:"room"`
}

// Controller is what was measured of a controller, over all its processes, and the advice.
type Controller struct {
	Name string `json:"name"`
	// Processes is the number of processes that run it.
	Processes int `json:"processes"`
	// WorkersPerProcess is MaxConcurrentReconciles, the most of all processes.
	WorkersPerProcess int `json:"workersPerProcess"`
	// BusyWorkers is how many workers were busy in all processes, on average.
	BusyWorkers float64 `json:"busyWorkers"`
	// Busy is the share of the workers that were busy.
	Busy float64 `json:"busy"`
	// ArrivalsPerSecond is what came into the queue, ReconcilesPerSecond what was done.
	ArrivalsPerSecond   float64 `json:"arrivalsPerSecond"`
	ReconcilesPerSecond float64 `json:"reconcilesPerSecond"`
	// ErrorShare is the share of the reconciles that failed.
	ErrorShare float64 `json:"errorShare"`
	// QueueBefore and QueueAfter are how many objects were in the queue at the readings.
	QueueBefore float64 `json:"queueBefore"`
	QueueAfter  float64 `json:"queueAfter"`
	// WaitMeanSeconds is the mean time in the queue. WaitExact reports whether the distribution of the wait is known to 10 %, by native
	// histograms; else it is known to a power of ten.
	WaitMeanSeconds float64 `json:"waitMeanSeconds"`
	WaitExact       bool    `json:"waitExact"`
	// ReconcileMeanSeconds, ReconcileP99Seconds and ReconcileVariation (the squared coefficient of variation) describe the time of a reconcile.
	ReconcileMeanSeconds float64 `json:"reconcileMeanSeconds"`
	ReconcileP99Seconds  float64 `json:"reconcileP99Seconds"`
	ReconcileVariation   float64 `json:"reconcileVariation"`
	// P99Seconds is the 99th percentile of the time from an event to the end of its reconcile.
	P99Seconds float64 `json:"p99Seconds"`
	// BurstSize is how many others arrive together with an object, on average, to explain the wait.
	BurstSize float64 `json:"burstSize"`
	// Verdict is what limits the controller, and Text says it for people.
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	// Do is what to do. Empty: nothing.
	Do       string    `json:"do,omitempty"`
	Findings []Finding `json:"findings"`
	// Plan is absent if the model says nothing: without reconciles, or for a hot object.
	Plan *Plan `json:"plan,omitempty"`
}

// Process is what was measured of a process.
type Process struct {
	Name string `json:"name"`
	// Controllers is the number of controllers that run in it.
	Controllers int `json:"controllers"`
	// UptimeSeconds is its age. 0: it is not known.
	UptimeSeconds float64 `json:"uptimeSeconds"`
	// CPUCores is how many cores it used, CPULimitCores how many it may use. 0: not known.
	CPUCores      float64 `json:"cpuCores"`
	CPULimitCores float64 `json:"cpuLimitCores"`
	// SchedulingP99Seconds is how long goroutines wait for a core, the 99th percentile. 0: not known.
	SchedulingP99Seconds float64 `json:"schedulingP99Seconds"`
	MemoryBytes          float64 `json:"memoryBytes"`
	MemoryLimitBytes     float64 `json:"memoryLimitBytes"`
	// RequestsPerSecond counts requests to API servers, ThrottledPerSecond those that were answered with 429, FailedPerSecond with 5xx.
	RequestsPerSecond  float64 `json:"requestsPerSecond"`
	ThrottledPerSecond float64 `json:"throttledPerSecond"`
	FailedPerSecond    float64 `json:"failedPerSecond"`
	// LimiterWorkers is how many workers waited for the client's own rate limit, on average; RequestWorkers is the same for answers of the
	// API server. They are 0 unless the program registers the metrics: LimiterKnown, RequestTimeKnown.
	LimiterKnown     bool    `json:"limiterKnown"`
	LimiterWorkers   float64 `json:"limiterWorkers"`
	RequestTimeKnown bool    `json:"requestTimeKnown"`
	RequestWorkers   float64 `json:"requestWorkers"`
}

// Conclusion is the answer to the question.
type Conclusion struct {
	// Problem reports whether a controller has a problem.
	Problem bool `json:"problem"`
	// Shard reports whether more shards are the remedy.
	Shard bool `json:"shard"`
	// Shards is how many are needed. 0: unknown, or no shards are needed.
	Shards int `json:"shards"`
	// Text says it for people, and Do what to do, besides the advice about each controller.
	Text string   `json:"text"`
	Do   []string `json:"do"`
}

// Report is the advice.
type Report struct {
	// IntervalSeconds is how long the processes were observed.
	IntervalSeconds float64 `json:"intervalSeconds"`
	// TargetP99Seconds and Growth are the question.
	TargetP99Seconds float64      `json:"targetP99Seconds"`
	Growth           float64      `json:"growth"`
	Controllers      []Controller `json:"controllers"`
	Processes        []Process    `json:"processes"`
	Conclusion       Conclusion   `json:"conclusion"`
	// Assumptions are what the plans rely on.
	Assumptions []string `json:"assumptions"`
}
