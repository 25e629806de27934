module github.com/clusterring/clusterring/tools/example

go 1.26.0
