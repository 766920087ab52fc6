# Evaluates a Vagrantfile without Vagrant, and prints what it defines as JSON: each machine, in order, with its
# networks (type and options) and provisioners (name and options), and the options of each provider.
require "json"

class Anything # what the test does not look at
  def initialize(seen = {}) = @seen = seen

  def method_missing(name, *values)
    @seen[name.to_s.delete_suffix("=")] = values.first if name.end_with?("=")
    self
  end

  def respond_to_missing?(*) = true
end

class Machine
  attr_reader :told

  def initialize(name) = @told = { name: name, networks: [], provisioners: [], providers: {} }
  def vm = self
  def hostname=(name)
    @told[:hostname] = name
  end
  def network(type, **options) = @told[:networks] << { type: type, **options }
  def provision(name, **options) = @told[:provisioners] << { name: name, **options }
  def provider(name) = yield(Anything.new(@told[:providers][name] = {}))
end

class Config
  attr_reader :told

  def initialize = @told = { folders: [], machines: [] }
  def vm = self
  def box=(name)
    @told[:box] = name
  end
  def synced_folder(here, there, **options) = @told[:folders] << { here: here, there: there, **options }

  def define(name)
    machine = Machine.new(name)
    yield machine
    @told[:machines] << machine.told
  end
end

module Vagrant
  def self.configure(_version)
    config = Config.new
    yield config
    puts JSON.generate(config.told)
  end
end

load ARGV.fetch(0)
