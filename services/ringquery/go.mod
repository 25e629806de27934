module github.com/clusterring/clusterring/services/ringquery

go 1.26.0
